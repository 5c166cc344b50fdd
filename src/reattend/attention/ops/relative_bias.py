"""Position biases that depend on the offset between two places of a grid alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def relative_table(filters: Tensor, outside: float, elsewhere: float = 0.0) -> Tensor:
    """(h, K + 2): the K taps of filters (h, s_1, ..., s_d), then the bias where they do not reach, and another one."""
    return F.pad(F.pad(filters.flatten(1), (0, 1), value=outside), (0, 1), value=elsewhere)


def relative_index(
    kernel: Sequence[int],
    rows: Sequence[int],
    keys: Sequence[int],
    start: Sequence[int],
    centre: Sequence[int],
    device: torch.device,
) -> Tensor:
    """Places in `relative_table` of the biases w(start + j - i + centre) of rows i and keys j, (T, S).

    Args:
        kernel: taps along each axis.
        rows: extents of the grid of rows, of product T.
        keys: extents of the grid of keys, of product S.
        start: place of the first key, seen from the first row.
        centre: tap of a row's own place.
        device: where the index is to be.
    """
    taps = torch.zeros((), dtype=torch.long, device=device)
    reached = torch.ones((), dtype=torch.bool, device=device)
    dimensions = len(rows)
    for axis, size in enumerate(kernel):
        i, j = (torch.arange(extent, device=device) for extent in (rows[axis], keys[axis]))
        tap = start[axis] + j - i[:, None] + centre[axis]
        shape = [1] * 2 * dimensions
        shape[axis], shape[dimensions + axis] = tap.shape
        tap = tap.view(shape)
        reached = reached & (tap >= 0) & (tap < size)
        taps = taps * size + tap
    index = torch.where(reached, taps, math.prod(kernel))
    return index.reshape(math.prod(rows), math.prod(keys))


def relative_bias(
    filters: Tensor, grid: Sequence[int], centre: Sequence[int], outside: float, prefix: int = 0, elsewhere: float = 0.0
) -> Tensor:
    """Biases (h, P + N, P + N) between the N places of a grid, and `elsewhere` from and to P tokens at no place."""
    index = relative_index(filters.shape[1:], grid, grid, [0] * len(grid), centre, filters.device)
    table = relative_table(filters, outside, elsewhere)
    if prefix:
        index = F.pad(index, (prefix, 0, prefix, 0), value=table.shape[1] - 1)
    return table[:, index]
