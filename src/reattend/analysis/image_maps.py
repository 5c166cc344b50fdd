"""Which places of an image each head attends to: attention maps of one image, and relative maps of many."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from reattend.attention import Mixer
from reattend.attention.aft.mixer import AFTMixer
from reattend.errors import ReattendError

MOST_CHANNELS = 8


@dataclass(frozen=True)
class LayerMap:
    """Averaged weights of one layer.

    Attributes:
        layer: index of the layer, from 0.
        heads: which heads, or channels where each has a map of its own.
        values: one image for each of them, (H, height, width).
    """

    layer: int
    heads: list[int]
    values: Tensor


def relative_maps(model: nn.Module, batches: Iterable[Tensor]) -> list[LayerMap]:
    """Mean attention of each head by the offset of the key from the query on the grid (AFT's Fig. 1, left).

        M_h(dy, dx) = mean over images b and places p with p + (dy, dx) inside the grid of A_bh(p, p + (dy, dx))

    Class tokens are left out, as queries and as keys, without renormalising. Of the Attention Free Transformer, where
    every channel has a map of its own (its Eqn 3), eight channels at even distances stand for all.

    Args:
        model: a vision transformer in evaluation mode.
        batches: images (B, C, S, S), of one size.

    Returns:
        For each layer with a map values (H, 2 g - 1, 2 g - 1) on a grid of g x g, offset 0 in the middle.

    Raises:
        ReattendError: no layer has an attention map, or there is no image.
    """
    sums: dict[int, Tensor] = {}
    heads: dict[int, list[int]] = {}
    images = 0
    for batch in batches:
        images += len(batch)
        for layer, of_layer, weights, prefix in _maps(model, batch):
            found = _by_offset(weights[..., prefix:, prefix:]).sum(0)
            sums[layer] = sums[layer] + found if layer in sums else found
            heads[layer] = of_layer
    if not images:
        raise ReattendError("there is no image to average over")
    return [LayerMap(layer, heads[layer], sums[layer] / images) for layer in sorted(sums)]


def maps_of_image(model: nn.Module, image: Tensor) -> list[LayerMap]:
    """Attention to the places of one image (1, C, S, S): of the class token, or of the place in the middle without one.

    Returns:
        For each layer with a map values (H, g, g).

    Raises:
        ReattendError: no layer has an attention map.
    """
    found = []
    for layer, heads, weights, prefix in _maps(model, image):
        grid = math.isqrt(weights.shape[-1] - prefix)
        query = 0 if prefix else grid // 2 * grid + grid // 2
        found.append(LayerMap(layer, heads, weights[0, :, query, prefix:].unflatten(-1, (grid, grid))))
    return found


def maps_figure(maps: list[LayerMap], title: str, image: Tensor | None = None, relative: bool = True) -> Figure:
    """A panel for each head, a row for each layer, each from 0 (dark) to its own largest value.

    Args:
        maps: of the layers.
        title: above the picture.
        image: (C, S, S), shown before the first row.
        relative: whether the axes are offsets from the query, or places.
    """
    columns = max(len(layer.heads) for layer in maps)
    rows = len(maps) + (image is not None)
    figure = Figure(figsize=(1.1 * columns + 1.0, 1.15 * rows + 0.8), layout="constrained")
    figure.suptitle(title, fontsize=8)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    if image is not None:
        low, high = image.min(), image.max()
        shown = ((image - low) / (high - low).clamp(min=1e-6)).permute(1, 2, 0)
        grid[0, 0].imshow(shown.numpy() if shown.shape[-1] == 3 else shown[..., 0].numpy(), cmap="gray")
        grid[0, 0].set_title("image", fontsize=7)
        grid = grid[1:]
    for row, layer in zip(grid, maps, strict=True):
        for axes, head, values in zip(row, layer.heads, layer.values.double().cpu().numpy(), strict=False):
            reach = values.shape[-1] // 2
            extent = (-reach - 0.5, reach + 0.5, reach + 0.5, -reach - 0.5) if relative else None
            axes.imshow(values, cmap="viridis", vmin=0, vmax=float(values.max()) or 1.0, extent=extent)
            axes.set_title(f"layer {layer.layer}, {head}: max {float(values.max()):.2g}", fontsize=5, pad=2)
    return figure


@torch.no_grad()
def _maps(model: nn.Module, x: Tensor) -> list[tuple[int, list[int], Tensor, int]]:
    """Layer, heads, weights (B, H, N, N) and number of prefix tokens of each layer that has a map."""
    found: list[tuple[int, list[int], Tensor, int]] = []

    def hook(mixer: Any, inputs: tuple[Any, ...], output: Any) -> None:
        weights = _weights(mixer, inputs[0])
        if weights is not None:
            found.append((mixer.spec.layer, *weights, mixer.spec.prefix_tokens))

    mixers = [module for module in model.modules() if isinstance(module, Mixer)]
    handles = [mixer.register_forward_hook(hook) for mixer in mixers]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        kinds = ", ".join(sorted({type(mixer).__name__ for mixer in mixers}))
        raise ReattendError(f"no layer of the model has an attention map, of the attention in it: {kinds}")
    return found


def _weights(mixer: Mixer, x: Tensor) -> tuple[list[int], Tensor] | None:
    if isinstance(mixer, AFTMixer):
        width = mixer.spec.dim
        channels = list(range(0, width, -(-width // MOST_CHANNELS)))
        return channels, mixer.implied_map(x, channels=channels)
    try:
        weights = mixer.attention_map(x)
    except NotImplementedError:
        return None
    return list(range(weights.shape[1])), weights


def _by_offset(weights: Tensor) -> Tensor:
    """(B, H, N, N) of a square grid to the mean at each offset (B, H, 2 g - 1, 2 g - 1)."""
    grid = math.isqrt(weights.shape[-1])
    size = 2 * grid - 1
    places = torch.arange(grid)
    offset = places[None, :] - places[:, None] + grid - 1  # (query, key) along one axis
    index = (offset[:, None, :, None] * size + offset[None, :, None, :]).reshape(-1).to(weights.device)
    sums = weights.new_zeros(*weights.shape[:2], size * size).index_add_(-1, index, weights.flatten(2))
    counts = weights.new_zeros(size * size).index_add_(0, index, weights.new_ones(len(index)))
    means: Tensor = (sums / counts).view(*weights.shape[:2], size, size)
    return means
