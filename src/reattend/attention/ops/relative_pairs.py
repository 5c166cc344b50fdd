"""Averages of values on a grid with weights exp(key + filter), some places at a time against all others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from reattend.attention.ops import weighted_average  # noqa: F401  Registers its operators.
from reattend.attention.ops.grouped_average import FALLBACK_ELEMENTS
from reattend.attention.ops.relative_bias import relative_index, relative_table

Gradients = tuple[Tensor, Tensor, Tensor]


def pairwise(filters: Tensor, key: Tensor, value: Tensor, grid: Sequence[int], outside: float) -> tuple[Tensor, Tensor]:
    """`convolved_average` by `weighted_average`, which is exact for all keys and biases, in quadratic time."""
    table, heads = relative_table(filters, outside), len(filters)
    keys, values = _by_filter(key, heads), _by_filter(value, heads)
    averages, log_sums = torch.empty_like(values), torch.empty_like(keys)
    for index, rows in _slabs(filters, grid):
        bias = table[:, index]
        for b in range(len(key)):
            found = torch.ops.reattend.weighted_average(bias, keys[b], values[b])
            averages[b, :, rows], log_sums[b, :, rows] = found
    return _by_place(averages), _by_place(log_sums)


def pairwise_gradients(filters: Tensor, tensors: Sequence[Tensor], grid: Sequence[int], outside: float) -> Gradients:
    """Gradients of filters, key and value, from key, value, average, log_sum and the gradients of the last two."""
    key, value, average, log_sum, d_average, d_log_sum = tensors
    table, heads = relative_table(filters, outside), len(filters)
    keys, values = _by_filter(key, heads), _by_filter(value, heads)
    outputs = [_by_filter(x, heads) for x in (average, log_sum, d_average, d_log_sum)]
    d_table, d_keys, d_values = torch.zeros_like(table), torch.zeros_like(keys), torch.zeros_like(values)
    for index, rows in _slabs(filters, grid):
        bias, places = table[:, index], index.reshape(1, -1).expand(heads, -1)
        for b in range(len(key)):
            d_bias, d_key, d_value = torch.ops.reattend.weighted_average_backward(
                bias, keys[b], values[b], *(x[b][:, rows] for x in outputs)
            )
            d_table.scatter_add_(1, places, d_bias.flatten(1))
            d_keys[b] += d_key
            d_values[b] += d_value
    return d_table[:, :-2].view_as(filters), _by_place(d_keys), _by_place(d_values)


def _slabs(filters: Tensor, grid: Sequence[int]) -> Iterator[tuple[Tensor, slice]]:
    """Indices of biases (T, N) of T places at a time, as many as memory should hold, and which places they are."""
    kernel, places, line = filters.shape[1:], math.prod(grid), math.prod(grid[1:])
    lines = max(1, FALLBACK_ELEMENTS // (len(filters) * places * line))
    for first in range(0, grid[0], lines):
        rows = [min(lines, grid[0] - first), *grid[1:]]
        starts = [-first, *[0] * (len(grid) - 1)]
        index = relative_index(kernel, rows, grid, starts, [size // 2 for size in kernel], filters.device)
        yield index, slice(first * line, first * line + len(index))


def _by_filter(x: Tensor, heads: int) -> Tensor:
    """(B, N, h R) to (B, h, N, R)."""
    by_filter: Tensor = x.unflatten(2, (heads, -1))
    return by_filter.transpose(1, 2).contiguous()


def _by_place(x: Tensor) -> Tensor:
    """(B, h, N, R) to (B, N, h R)."""
    return x.transpose(1, 2).flatten(2)
