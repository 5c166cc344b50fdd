"""Averages of values on a grid with weights exp(key + bias): a filter around each place, one constant elsewhere.

No sum is a difference: a place far below what it is taken from would be lost. Grids that are long along an axis are cut
into tiles there. A tile sees the keys around it one by one, and all others, which have one bias, as a single key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.grouped_average import grouped_average
from reattend.attention.ops.merged_averages import Average, merge, merged, padded, running
from reattend.attention.ops.relative_bias import relative_index, relative_table
from reattend.attention.ops.transposed import batch_first, batch_last

# A grid of up to so many places is one tile. Measured on a CPU, forward and backward: at 14 x 14 one product takes half
# the time of tiles, at 24 x 24 half as long again, at 32 x 32 7 to 17 times as long.
WHOLE = 256
# Places of a tile along each axis, at least, on grids of 1, 2 and 3 extents; 4 and 16 were slower than 8 in 2.
TILE = (32, 8, 4)


@dataclass(frozen=True)
class Axis:
    """How an axis is cut: `tiles` of `size` places, which see `halo` more on each side; a halo divides a tile."""

    extent: int
    size: int
    halo: int

    @property
    def tiles(self) -> int:
        return -(-self.extent // self.size)

    @property
    def pieces(self) -> int:
        """Pieces of `piece` places."""
        return self.tiles * self.size // self.piece

    @property
    def piece(self) -> int:
        return self.halo or self.size


def tile_plan(grid: Sequence[int], kernel: Sequence[int]) -> list[Axis]:
    """The tiles of a grid for a filter of `kernel` taps along each axis."""
    if math.prod(grid) <= WHOLE:
        return [Axis(extent, extent, 0) for extent in grid]
    plan = []
    for extent, taps in zip(grid, kernel, strict=True):
        halo = max(1, taps // 2)
        size = halo * -(-TILE[len(grid) - 1] // halo)
        plan.append(Axis(extent, extent, 0) if extent <= size + 2 * halo else Axis(extent, size, halo))
    return plan


def relative_average(
    filters: Tensor,
    key: Tensor,
    value: Tensor,
    grid: Sequence[int],
    *,
    outside: float = 0.0,
    elsewhere: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Averages of values and the logarithm of their normaliser, every place seeing all others.

        average_t = sum_t' exp(key_t' + w(t' - t)) value_t' / sum_t' exp(key_t' + w(t' - t))

    Args:
        filters: w (h, s_1, ..., s_d), each s odd, centred.
        key: (B, P + N, h), -inf where there is none; the P tokens in front are at no place.
        value: (B, P + N, h R).
        grid: the d extents, of product N.
        outside: the bias beyond the filter.
        elsewhere: the bias from and to the tokens at no place.

    Returns:
        average (B, P + N, h R), zero for a place that sees no key, and log_sum (B, P + N, h), then -inf.
    """
    keys = batch_last(key).transpose(0, 1)
    values = batch_last(value).unflatten(1, (len(filters), -1)).transpose(0, 1)
    plan = tile_plan(grid, filters.shape[1:])
    average, log_sum = (_whole if all(axis.tiles == 1 for axis in plan) else _tiled)(
        filters, keys, values, plan, outside, elsewhere
    )
    return batch_first(average.transpose(0, 1).flatten(1, 2)), log_sum.permute(2, 1, 0)


def relative_average_flops(grid: Sequence[int], kernel: Sequence[int], prefix: int, columns: int) -> int:
    """Floating-point operations of `relative_average` for `columns` values and keys of a place, 2 per multiply-add."""
    plan = tile_plan(grid, kernel)
    tiles = math.prod(axis.tiles for axis in plan)
    if tiles == 1:
        return 2 * columns * (math.prod(grid) + prefix) ** 2
    rows = math.prod(axis.size for axis in plan)
    window = math.prod(axis.size + 2 * axis.halo for axis in plan) + 1
    # The windows, and the sums of pieces.
    return 2 * columns * tiles * rows * (window + 1)


def _whole(
    filters: Tensor, keys: Tensor, values: Tensor, plan: Sequence[Axis], outside: float, elsewhere: float
) -> tuple[Tensor, Tensor]:
    """As `relative_average`, keys (h, P + N, B) and values (h, P + N, R, B) to (h, P + N, R, B) and (h, P + N, B)."""
    grid, kernel = [axis.extent for axis in plan], filters.shape[1:]
    table = relative_table(filters, outside, elsewhere)
    index = relative_index(kernel, grid, grid, [0] * len(grid), [size // 2 for size in kernel], keys.device)
    prefix = keys.shape[1] - math.prod(grid)
    if prefix:
        index = F.pad(index, (prefix, 0, prefix, 0), value=table.shape[1] - 1)
    return grouped_average(table, index, keys, values)


def _tiled(
    filters: Tensor, keys: Tensor, values: Tensor, plan: Sequence[Axis], outside: float, elsewhere: float
) -> tuple[Tensor, Tensor]:
    """As `_whole`."""
    prefix = keys.shape[1] - math.prod(axis.extent for axis in plan)
    keys = keys[:, :, None]
    nowhere = values[:, :prefix], keys[:, :prefix]
    keys, on_grid = keys[:, prefix:], values[:, prefix:]
    pieces = _piece_averages(keys, on_grid, plan)
    far_average, far_log_sum = _far(pieces, plan)
    far = far_average.flatten(1, len(plan)), (far_log_sum + outside).flatten(1, len(plan))
    if prefix:
        average, log_sum = merged(nowhere, 1)
        from_nowhere = average[:, None].expand_as(far[0]), (log_sum + elsewhere)[:, None].expand_as(far[1])
        far = merge([far, from_nowhere])
    window_keys, window_values = (
        torch.cat([_windows(x, plan, fill), x_far.transpose(1, 2).flatten(2)[:, None]], 1)
        for x, fill, x_far in ((keys, -math.inf, far[1]), (on_grid, 0.0, far[0]))
    )
    sizes, halos, kernel = [axis.size for axis in plan], [axis.halo for axis in plan], filters.shape[1:]
    extents = [size + 2 * halo for size, halo in zip(sizes, halos, strict=True)]
    starts, centre = [-halo for halo in halos], [size // 2 for size in kernel]
    table = relative_table(filters, outside)
    index = relative_index(kernel, sizes, extents, starts, centre, keys.device)
    index = F.pad(index, (0, 1), value=table.shape[1] - 1)
    average, log_sum = grouped_average(table, index, window_keys[:, :, 0], window_values)
    average, log_sum = _untiled(average, plan), _untiled(log_sum[:, :, None], plan)
    if prefix:
        for dim in range(len(plan), 0, -1):
            pieces = merged(pieces, dim)
        overall = merge([pieces, merged(nowhere, 1)])
        average = torch.cat([overall[0][:, None].expand(-1, prefix, -1, -1), average], 1)
        log_sum = torch.cat([(overall[1] + elsewhere)[:, None].expand(-1, prefix, -1, -1), log_sum], 1)
    return average, log_sum[:, :, 0]


def _piece_averages(keys: Tensor, values: Tensor, plan: Sequence[Axis]) -> Average:
    """(h, q_1, ..., q_d, R, B) and (h, q_1, ..., q_d, 1, B), of all keys of a piece."""
    keys, values = _pieces(keys, plan, -math.inf), _pieces(values, plan, 0.0)
    index = torch.zeros(1, keys.shape[1], dtype=torch.long, device=keys.device)
    average, log_sum = grouped_average(keys.new_zeros(len(keys), 1), index, keys[:, :, 0], values)
    # (h, 1, R, pieces B) to (h, pieces, R, B).
    counts = [axis.pieces for axis in plan]
    average = average[:, 0].unflatten(2, (*counts, -1)).movedim(1, -2)
    return average, log_sum[:, 0].unflatten(1, (*counts, -1))[..., None, :]


def _far(pieces: Average, plan: Sequence[Axis]) -> Average:
    """What tiles see beyond their windows: pieces (h, q_1, ..., q_d, R, B) to (h, m_1, ..., m_d, R, B).

    For each axis these are the pieces that are near along the axes before, beyond the window along this one, and
    anywhere along those after.
    """
    parts = []
    near = pieces
    for a, axis in enumerate(plan):
        row = near
        for dim in range(len(plan), 1 + a, -1):
            row = merged(row, dim)
        beyond = _beyond(row, 1 + a, axis)
        for dim in range(2 + a, 1 + len(plan)):
            beyond = beyond[0].unsqueeze(dim), beyond[1].unsqueeze(dim)
        parts.append(beyond)
        near = _near(near, 1 + a, axis)
    tiles = [axis.tiles for axis in plan]
    return merge([(x.expand(-1, *tiles, -1, -1), y.expand(-1, *tiles, -1, -1)) for x, y in parts])


def _beyond(pieces: Average, dim: int, axis: Axis) -> Average:
    """The pieces before and after the window of each tile along one axis."""
    if axis.tiles == 1:
        return torch.zeros_like(pieces[0]), torch.full_like(pieces[1], -math.inf)
    per_tile = axis.size // axis.piece
    up_to = running(pieces, dim)
    flipped = running((pieces[0].flip(dim), pieces[1].flip(dim)), dim)
    ends = []
    for average, log_sum in (up_to, flipped):
        # The window of tile i, counted from this end, begins at piece i per_tile - 1, where there is one before it.
        ends_at = [i * per_tile - 2 for i in range(axis.tiles)]
        chosen = [end for end in ends_at if end >= 0]
        index = torch.tensor(chosen, dtype=torch.long, device=average.device)
        picked = average.index_select(dim, index), log_sum.index_select(dim, index)
        ends.append(padded(picked, dim, len(ends_at) - len(chosen), 0))
    before, after = ends
    return merge([before, (after[0].flip(dim), after[1].flip(dim))])


def _near(pieces: Average, dim: int, axis: Axis) -> Average:
    """The pieces in the window of each tile along one axis."""
    if axis.tiles == 1:
        return pieces
    per_tile = axis.size // axis.piece
    average, log_sum = (x.unfold(dim, per_tile + 2, per_tile) for x in padded(pieces, dim, 1, 1))
    return merged((average.movedim(-1, 1), log_sum.movedim(-1, 1)), 1)


def _windows(x: Tensor, plan: Sequence[Axis], fill: float) -> Tensor:
    """(h, N, R, B) to (h, S, R, M B): the S places that each of the M tiles sees, `fill` beyond the grid."""
    x = x.unflatten(1, [axis.extent for axis in plan])
    for a, axis in enumerate(plan):
        x = _padded(x, 1 + a, axis.halo, axis.tiles * axis.size - axis.extent + axis.halo, fill)
    for a, axis in enumerate(plan):
        x = x.unfold(1 + a, axis.size + 2 * axis.halo, axis.size)
    d = len(plan)
    x = x.permute(0, *range(3 + d, 3 + 2 * d), 1 + d, *range(1, 1 + d), 2 + d)
    return x.flatten(1, d).flatten(3)


def _pieces(x: Tensor, plan: Sequence[Axis], fill: float) -> Tensor:
    """(h, N, R, B) to (h, places of a piece, R, pieces B)."""
    x = x.unflatten(1, [axis.extent for axis in plan])
    for a, axis in enumerate(plan):
        x = _padded(x, 1 + a, 0, axis.tiles * axis.size - axis.extent, fill)
    d = len(plan)
    for a, axis in enumerate(plan):
        x = x.unflatten(1 + 2 * a, (-1, axis.piece))
    x = x.permute(0, *range(2, 2 + 2 * d, 2), 1 + 2 * d, *range(1, 1 + 2 * d, 2), 2 + 2 * d)
    return x.flatten(1, d).flatten(3)


def _untiled(x: Tensor, plan: Sequence[Axis]) -> Tensor:
    """(h, places of a tile, R, tiles B) to (h, N, R, B), without the places beyond the grid."""
    d = len(plan)
    x = x.unflatten(3, [*(axis.tiles for axis in plan), -1]).unflatten(1, [axis.size for axis in plan])
    order = [place for a in range(d) for place in (2 + d + a, 1 + a)]
    x = x.permute(0, *order, 1 + d, 2 + 2 * d)
    for a, axis in enumerate(plan):
        x = x.flatten(1 + a, 2 + a).narrow(1 + a, 0, axis.extent)
    return x.flatten(1, d)


def _padded(x: Tensor, dim: int, before: int, after: int, fill: float) -> Tensor:
    if not before and not after:
        return x
    widths = [0, 0] * (x.dim() - 1 - dim) + [before, after]
    return F.pad(x, widths, value=fill)
