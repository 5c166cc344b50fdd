"""Learned position biases of the Attention Free Transformer, as numbers and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from reattend.attention.aft.conv import AFTConv
from reattend.attention.aft.full import AFTFull
from reattend.attention.aft.local import AFTLocal

MATRICES_IN_A_ROW = 4
FILTERS_IN_A_ROW = 8
MOST_FILTERS = 16
_LABEL = "exp(w) − 1"


@dataclass(frozen=True)
class LearnedBias:
    """exp(w) - 1 of one layer: how much more than 1, the weight of no bias, a position weighs.

    Attributes:
        layer: index of the layer, from 0.
        values: (N, N) by query and key for a bias between positions, NaN where the one does not see the other;
            (h, s), (h, s, s) or (h, s, s, s) for h filters of relative positions.
        centre: index of the tap at distance 0 along each axis of a filter; None for a matrix.
    """

    layer: int
    values: np.ndarray[Any, np.dtype[np.float64]]
    centre: int | None = None


def learned_biases(model: nn.Module) -> list[LearnedBias]:
    """exp(w) - 1 (Zhai et al. 2021, arXiv 2105.14103, Eqns 2, 4 and 8) of each layer that learns position biases.

    Filters are re-parameterised ones, as they act; with `signed`, where 1 + filter takes the place of exp(w), the
    filters themselves. AFT-simple, AFT-local without a window and all other attentions have none.
    """
    found = []
    for mixer in model.modules():
        if isinstance(mixer, AFTConv):
            filters = mixer.filters().detach().double()
            size = filters.shape[1]
            centre = size - 1 if mixer.spec.causal else size // 2
            weights = filters if mixer.signed else filters.expm1()
            found.append(LearnedBias(mixer.spec.layer, weights.cpu().numpy(), centre))
        elif isinstance(mixer, AFTFull | AFTLocal) and mixer.bias is not None:
            bias = mixer.position_bias(mixer.spec.max_length)[0].detach().double()
            found.append(LearnedBias(mixer.spec.layer, _seen(bias).cpu().numpy()))
    return found


def biases_figure(biases: Sequence[LearnedBias], title: str) -> Figure:
    """One picture of the biases of all layers, on one scale.

    A matrix is an image, query positions downwards and key positions to the right. Filters have a panel each: stems for
    a sequence, an image for a grid, the slices of a filter with three axes side by side; of a layer with more than
    sixteen filters those at even distances, by their numbers. Red weighs more than no bias, blue less, grey is not
    seen.

    Args:
        biases: at least one.
        title: above the picture.
    """
    matrices = [bias for bias in biases if bias.centre is None]
    filters = [bias for bias in biases if bias.centre is not None]
    groups = [group for group in (matrices, filters) if group]
    grids = [_grid(group) for group in groups]
    heights = [rows * _panel(group[0])[1] for group, (rows, _) in zip(groups, grids, strict=True)]
    width = max(columns * _panel(group[0])[0] for group, (_, columns) in zip(groups, grids, strict=True))
    figure = Figure(figsize=(max(width, 5.0) + 1.0, sum(heights) + 0.9), layout="constrained")
    figure.suptitle(title, fontsize=9)
    parts = figure.subfigures(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, group, (rows, columns) in zip(parts, groups, grids, strict=True):
        _draw(part, group, rows, columns)
    return figure


def _seen(bias: Tensor) -> Tensor:
    return bias.expm1().masked_fill(bias == -math.inf, math.nan)


def _panel(bias: LearnedBias) -> tuple[float, float]:
    """Width and height of a panel in inches."""
    if bias.centre is None:
        return 2.9, 2.9
    return 1.35 * max(1, bias.values.shape[1] if bias.values.ndim == 4 else 1), 1.5


def _grid(group: Sequence[LearnedBias]) -> tuple[int, int]:
    """Rows and columns of panels; the filters of each layer begin a row."""
    if group[0].centre is None:
        columns = min(len(group), MATRICES_IN_A_ROW)
        return -(-len(group) // columns), columns
    counts = [len(_shown(bias)) for bias in group]
    columns = min(max(counts), FILTERS_IN_A_ROW)
    return sum(-(-count // columns) for count in counts), columns


def _shown(bias: LearnedBias) -> range:
    """Which filters have a panel."""
    return range(0, len(bias.values), -(-len(bias.values) // MOST_FILTERS))


def _draw(part: SubFigure, group: Sequence[LearnedBias], rows: int, columns: int) -> None:
    limit = max((float(np.nanmax(np.abs(bias.values))) for bias in group), default=0.0) or 1.0
    norm = Normalize(-limit, limit)
    stems = group[0].centre is not None and group[0].values.ndim == 2
    grid = part.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    panels = iter(grid.flat)
    position = 0
    for bias in group:
        contents = {0: bias.values} if bias.centre is None else {index: bias.values[index] for index in _shown(bias)}
        for index, content in contents.items():
            axes = next(panels)
            if bias.centre is None:
                _matrix(axes, bias.layer, content, norm)
            else:
                _filter(axes, bias, index, content, norm)
            position += 1
        while bias.centre is not None and position % columns:
            next(panels).set_axis_off()
            position += 1
    for axes in panels:
        axes.set_axis_off()
    if not stems:
        scale = ScalarMappable(norm, "RdBu_r")
        bar = part.colorbar(scale, ax=grid, shrink=0.8, aspect=30, pad=0.01)
        bar.set_label(_LABEL, fontsize=8)
        bar.ax.tick_params(labelsize=7)
    _label(part, group[0], stems)


def _matrix(axes: Axes, layer: int, values: np.ndarray[Any, Any], norm: Normalize) -> None:
    axes.set_facecolor("0.75")
    axes.imshow(values, cmap="RdBu_r", norm=norm, interpolation="nearest")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_title(f"layer {layer}", fontsize=8)
    axes.tick_params(labelsize=7)


def _filter(axes: Axes, bias: LearnedBias, index: int, values: np.ndarray[Any, Any], norm: Normalize) -> None:
    assert bias.centre is not None
    offsets = np.arange(len(values)) - bias.centre
    if values.ndim == 1:
        axes.axhline(0, color="0.6", linewidth=0.6)
        axes.vlines(offsets, 0, values, colors=["#B2182B" if value > 0 else "#2166AC" for value in values])
        axes.set_ylim(1.1 * norm.vmin, 1.1 * norm.vmax)  # type: ignore[operator]
    else:
        axes.set_facecolor("0.75")
        low, high = offsets[0] - 0.5, offsets[-1] + 0.5
        image = values if values.ndim == 2 else _side_by_side(values)
        right = low + (high - low) * image.shape[1] / len(values)
        axes.imshow(image, cmap="RdBu_r", norm=norm, interpolation="nearest", extent=(low, right, high, low))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    if values.ndim == 3:
        axes.set_xticks([])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(f"layer {bias.layer}, filter {index}", fontsize=7)
    axes.tick_params(labelsize=6)


def _side_by_side(filter_: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The slices of a filter (s, s, s) along its first axis, with a gap between."""
    gap = np.full((filter_.shape[1], 1), np.nan)
    return np.concatenate([part for slice_ in filter_ for part in (slice_, gap)][:-1], axis=1)


def _label(part: SubFigure, bias: LearnedBias, stems: bool) -> None:
    if bias.centre is None:
        part.supxlabel("position t′ of the key (steps)", fontsize=8)
        part.supylabel("position t of the query (steps)", fontsize=8)
    elif stems:
        part.supxlabel("offset t′ − t of the key (steps)", fontsize=8)
        part.supylabel(_LABEL, fontsize=8)
    else:
        slices = "; slices along the first axis, from left to right" if bias.values.ndim == 4 else ""
        part.supxlabel(f"offset of the key along the last axis (places){slices}", fontsize=8)
        part.supylabel("offset along the axis before it (places)", fontsize=8)
