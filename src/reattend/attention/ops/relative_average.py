"""Averages of values on a grid with weights exp(key + bias): a filter around each place, one constant elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.convolved_average import convolved_average
from reattend.attention.ops.grouped_average import grouped_average
from reattend.attention.ops.merged_averages import merge
from reattend.attention.ops.overall_average import overall_average
from reattend.attention.ops.relative_bias import relative_index, relative_table
from reattend.attention.ops.transposed import batch_first, batch_last

# Measured on one thread, forward and backward, 192 channels, 3, 32 and 192 filters, in 111 cases: 8 x 8 to 48 x 48 with
# 3 to 15 taps a side, 64 to 512 places of a sequence with 3 to 301, 6 x 8 x 8 with 3 and 5. In units of the product
# with one bias, a value costs N by the table, and N TABLE / columns its part of looking N biases up and of gathering
# their gradients; by convolution TAP for each tap and PASSES for all else. The way so chosen takes 0.8 % longer than
# the faster one in the mean, and 1.32 times at most. In ms, convolution and table, 32 filters: 8 x 8 with 11 x 11 taps,
# 16 samples 9.4 and 6.3; 14 x 14, 64 samples, 108 and 85 (192 filters: 203 and 262); 20 x 20, 8 samples, 34 and 65;
# 24 x 24, 4 samples, 21 and 163; 32 x 32, 2 samples, 21 and 483.
PASSES = 70.0
TAP = 2.5
TABLE = 120.0


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

    By one product with the table of all biases or by convolution, as `is_convolved` says.

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
    columns = len(key) * (value.shape[2] // key.shape[2] + 1)
    if not is_convolved(grid, filters.shape[1:], columns):
        return _by_table(filters, key, value, grid, outside, elsewhere)
    prefix = key.shape[1] - math.prod(grid)
    on_grid = convolved_average(filters, key[:, prefix:], value[:, prefix:], grid, outside)
    if not prefix:
        return on_grid
    average, log_sum = overall_average(key[:, :prefix], value[:, :prefix])
    everywhere = merge([(average, log_sum), overall_average(key[:, prefix:], value[:, prefix:])])
    from_nowhere = average.expand_as(on_grid[0]), (log_sum + elsewhere).expand_as(on_grid[1])
    average, log_sum = merge([on_grid, from_nowhere])
    to_nowhere = everywhere[0].expand(-1, prefix, -1), (everywhere[1] + elsewhere).expand(-1, prefix, -1)
    return torch.cat([to_nowhere[0], average], 1), torch.cat([to_nowhere[1], log_sum], 1)


def is_convolved(grid: Sequence[int], kernel: Sequence[int], columns: int) -> bool:
    """Whether convolution is the faster way for `columns` values and weights of a place that share a filter.

    It always is beyond PASSES + TAP * taps places, so that memory is linear in their number.
    """
    return PASSES + TAP * math.prod(kernel) < math.prod(grid) * (1 + TABLE / max(1, columns))


def relative_average_flops(grid: Sequence[int], kernel: Sequence[int], prefix: int, filters: int, dim: int) -> int:
    """Floating-point operations of `relative_average` for one sample with `dim` values a place, 2 per multiply-add.

    Those of products and convolutions; the sums of what a filter does not reach are a few additions for each value.
    """
    places = math.prod(grid)
    if is_convolved(grid, kernel, dim // filters + 1):
        return 2 * (dim + filters) * places * math.prod(kernel)
    return 2 * (dim + filters) * (places + prefix) ** 2


def _by_table(
    filters: Tensor, key: Tensor, value: Tensor, grid: Sequence[int], outside: float, elsewhere: float
) -> tuple[Tensor, Tensor]:
    """As `relative_average`, by the biases of all pairs."""
    keys = batch_last(key).transpose(0, 1)
    values = batch_last(value).unflatten(1, (len(filters), -1)).transpose(0, 1)
    kernel = filters.shape[1:]
    table = relative_table(filters, outside, elsewhere)
    index = relative_index(kernel, grid, grid, [0] * len(grid), [size // 2 for size in kernel], keys.device)
    prefix = key.shape[1] - math.prod(grid)
    if prefix:
        index = F.pad(index, (prefix, 0, prefix, 0), value=table.shape[1] - 1)
    average, log_sum = grouped_average(table, index, keys, values)
    return batch_first(average.transpose(0, 1).flatten(1, 2)), log_sum.permute(2, 1, 0)
