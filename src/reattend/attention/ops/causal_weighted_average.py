"""`weighted_average` in which row t sees the keys up to t, and nothing of later ones in any reference or rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reattend.attention.ops.diagonal_average import diagonal_average, diagonal_gradients
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.tile_average import spread, tile_average, tile_gradients

# Rows of a block on the diagonal.
SMALLEST = 64


def causal_weighted_average(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """`weighted_average` over the keys s <= t alone.

    For each length L = 64, 128, 256, ... the rows of every odd block of L tokens see the keys of the even block before
    it, all of which are past: one batch of tiles whose maxima come from no later token. Blocks of 64 on the diagonal
    are those of `diagonal_average`. Only inputs and outputs are kept for the gradients.

    Args:
        bias: (n, N, N); what is above the diagonal plays no part.
        key: (n, N, C), float32 or float64, -inf where there is no key; one channel for each R channels of `value`.
        value: (n, N, C R).

    Returns:
        average (n, N, C R), zero where a row sees no key, and log_sum (n, N, C), then -inf.
    """
    average, log_sum = torch.ops.reattend.causal_weighted_average(bias, key, value)
    return average, log_sum


@dataclass(frozen=True)
class _Tiles:
    """`count` tiles of `rows` by `keys`; the first is at `row` and `key`, each next one `step` further in both."""

    row: int
    rows: int
    key: int
    keys: int
    step: int
    count: int

    def of_rows(self, x: Tensor) -> Tensor:
        """View (n, count, rows, C) of x (n, N, C)."""
        return self._blocks(x, 1, self.row, self.rows).movedim(-1, 2)

    def of_keys(self, x: Tensor) -> Tensor:
        """View (n, count, keys, C) of x (n, N, C)."""
        return self._blocks(x, 1, self.key, self.keys).movedim(-1, 2)

    def of_both(self, bias: Tensor) -> Tensor:
        """View (n, count, rows, keys) of bias (n, N, N)."""
        tiles = self._blocks(self._blocks(bias, 1, self.row, self.rows), 2, self.key, self.keys)
        return tiles.diagonal(dim1=1, dim2=2).movedim(-1, 1)

    def _blocks(self, x: Tensor, dim: int, start: int, size: int) -> Tensor:
        return x.narrow(dim, start, (self.count - 1) * self.step + size).unfold(dim, size, self.step)


def _diagonal(length: int) -> Iterator[_Tiles]:
    whole, rest = divmod(length, SMALLEST)
    if whole:
        yield _Tiles(0, SMALLEST, 0, SMALLEST, SMALLEST, whole)
    if rest:
        start = whole * SMALLEST
        yield _Tiles(start, rest, start, rest, rest, 1)


def _below(length: int) -> Iterator[_Tiles]:
    """All that is below the blocks of the diagonal; the rows of a last block may be fewer."""
    size = SMALLEST
    while size < length:
        whole, rest = divmod(length, 2 * size)
        if whole:
            yield _Tiles(size, size, 0, size, 2 * size, whole)
        if rest > size:
            start = whole * 2 * size
            yield _Tiles(start + size, rest - size, start, size, 1, 1)
        size *= 2


def _future(size: int, like: Tensor) -> Tensor:
    """-inf above the diagonal, else 0."""
    return torch.full((size, size), -math.inf, dtype=like.dtype, device=like.device).triu(1)


@torch.library.custom_op("reattend::causal_weighted_average", mutates_args=())
def _causal_weighted_average(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    with without_autocast(bias):
        return _forward(bias, key, value)


def _forward(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    average, log_sum = torch.empty_like(value), torch.empty_like(key)
    for tiles in _diagonal(key.shape[1]):
        tile_bias = tiles.of_both(bias) + _future(tiles.rows, bias)
        found = diagonal_average(*_flat(tile_bias, tiles.of_keys(key), tiles.of_keys(value)))
        for whole, part in zip((average, log_sum), found, strict=True):
            view = tiles.of_rows(whole)
            view.copy_(part.view(view.shape))
    for tiles in _below(key.shape[1]):
        found = tile_average(*_flat(tiles.of_both(bias), tiles.of_keys(key), tiles.of_keys(value)))
        averages, log_sums = tiles.of_rows(average), tiles.of_rows(log_sum)
        _add(averages, log_sums, found[0].view(averages.shape), found[1].view(log_sums.shape))
    return average, log_sum


def _add(average: Tensor, log_sum: Tensor, other: Tensor, other_log_sum: Tensor) -> None:
    """Takes the average over more keys into `average` and `log_sum`, in place."""
    both = torch.logaddexp(log_sum, other_log_sum)
    reference = torch.where(both.isinf(), 0.0, both)
    average.mul_(spread((log_sum - reference).exp_(), average))
    average.addcmul_(spread((other_log_sum - reference).exp_(), average), other)
    log_sum.copy_(both)


@_causal_weighted_average.register_fake
def _(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), torch.empty_like(key)


@torch.library.custom_op("reattend::causal_weighted_average_backward", mutates_args=())
def _causal_weighted_average_backward(
    bias: Tensor, key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Each tile's weights relative to the sums over all keys, which are in `log_sum`."""
    d_bias, d_key, d_value = torch.zeros_like(bias), torch.zeros_like(key), torch.zeros_like(value)
    of_rows = (average, log_sum, d_average, d_log_sum)
    with without_autocast(bias):
        for kind, gradients in ((_diagonal, diagonal_gradients), (_below, tile_gradients)):
            for tiles in kind(key.shape[1]):
                tile_bias = tiles.of_both(bias)
                if kind is _diagonal:
                    tile_bias = tile_bias + _future(tiles.rows, bias)
                keys = (tiles.of_keys(key), tiles.of_keys(value))
                found = gradients(*_flat(tile_bias, *keys, *map(tiles.of_rows, of_rows)))
                views = tiles.of_both(d_bias), tiles.of_keys(d_key), tiles.of_keys(d_value)
                for view, part in zip(views, found, strict=True):
                    view.add_(part.view(view.shape))
    return d_bias, d_key, d_value


@_causal_weighted_average_backward.register_fake
def _(
    bias: Tensor, key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(bias), torch.empty_like(key), torch.empty_like(value)


def _flat(*tensors: Tensor) -> list[Tensor]:
    """(n, count, ...) as (n count, ...)."""
    return [x.flatten(0, 1) for x in tensors]


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx: Any, d_average: Tensor, d_log_sum: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.reattend.causal_weighted_average_backward(
        *ctx.saved_tensors, d_average, d_log_sum
    )
    return gradients


_causal_weighted_average.register_autograd(_differentiate, setup_context=_keep)
