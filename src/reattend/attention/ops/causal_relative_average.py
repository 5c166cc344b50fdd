"""Causal averages with weights exp(key + bias), the bias a filter over the last places and constant before.

Every product takes its largest key, and its way of computing, from keys that are all past for all of its rows: outputs
do not move by a bit when later tokens change.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.grouped_average import grouped_average
from reattend.attention.ops.merged_averages import Average, merge, running
from reattend.attention.ops.relative_bias import relative_index, relative_table
from reattend.attention.ops.transposed import batch_first, batch_last

SMALLEST_BLOCK = 16


def causal_relative_average(filters: Tensor, key: Tensor, value: Tensor, *, outside: float = 0.0) -> Average:
    """Averages of values and the logarithm of their normaliser.

        average_t = sum_{t' <= t} exp(key_t' + w(t' - t + s - 1)) value_t' / sum_{t' <= t} exp(key_t' + w(...))

    Time and memory are linear in length.

    Args:
        filters: w (h, s), the last tap a token's own.
        key: (B, N, h), -inf where there is none.
        value: (B, N, h R).
        outside: the bias of tokens s and more before.

    Returns:
        average (B, N, h R), zero for a token that sees no key, and log_sum (B, N, h), then -inf.
    """
    heads, size = filters.shape
    length = key.shape[1]
    block = block_size(size)
    # One block more in front, so that each has one before it.
    padding = (0, 0, block, -length % block)
    keys = batch_last(F.pad(key, padding, value=-math.inf)).transpose(0, 1)[:, :, None]
    values = batch_last(F.pad(value, padding)).unflatten(1, (heads, -1)).transpose(0, 1)
    keys, values = keys.unflatten(1, (-1, block)), values.unflatten(1, (-1, block))
    table = relative_table(filters, outside)
    average, log_sum = merge([_before(table, size, keys, values), _inside(table, size, keys[:, 1:], values[:, 1:])])
    average = average[:, :length].transpose(0, 1).flatten(1, 2)
    return batch_first(average), log_sum[:, :length, 0].permute(2, 1, 0)


def block_size(size: int) -> int:
    """The power of two that a filter of `size` taps fits into."""
    return max(SMALLEST_BLOCK, 1 << max(0, size - 2).bit_length())


def causal_relative_average_flops(length: int, size: int, columns: int) -> int:
    """Floating-point operations for `columns` values and keys of a token, 2 per multiply-add."""
    block = block_size(size)
    blocks = -(-length // block)
    # Sums of blocks; the block before and what is before that; halves of a block, their halves, and so on.
    return 2 * columns * (block * (blocks + 1) + blocks * (block * (block + 1) + block * (block - 1) // 2))


def _before(table: Tensor, size: int, keys: Tensor, values: Tensor) -> Average:
    """What each block sees before itself: keys (h, n + 1, L, 1, B) to (h, n L, R, B) and (h, n L, 1, B)."""
    heads, blocks, block, _, batch = keys.shape
    outside, alone = table.shape[1] - 2, table.shape[1] - 1
    sums = grouped_average(
        table, torch.full((1, block), outside, device=keys.device), _by_place(keys)[:, :, 0], _by_place(values)
    )
    average, log_sum = (x.reshape(heads, -1, blocks, batch).transpose(1, 2) for x in sums)
    before = running((average[:, :-1], log_sum[:, :-1]), 1)
    # The block before one by one, all before that as one key.
    far_average, far_log_sum = (_later(x, fill) for x, fill in zip(before, (0.0, -math.inf), strict=True))
    window_keys, window_values = (
        torch.cat([_by_place(x[:, :-1]), far.transpose(1, 2).flatten(2)[:, None]], 1)
        for x, far in ((keys, far_log_sum), (values, far_average))
    )
    index = relative_index([size], [block], [block], [-block], [size - 1], keys.device)
    average, log_sum = grouped_average(table, F.pad(index, (0, 1), value=alone), window_keys[:, :, 0], window_values)
    return _by_block(average, batch), _by_block(log_sum[:, :, None], batch)


def _inside(table: Tensor, size: int, keys: Tensor, values: Tensor) -> Average:
    """What each token sees of its own block: keys (h, n, L, 1, B) to (h, n L, R, B) and (h, n L, 1, B)."""
    block, batch = keys.shape[2], keys.shape[4]
    keys, values = keys.flatten(1, 2), values.flatten(1, 2)
    average, log_sum = values, keys + table[:, size - 1, None, None, None]
    half = 1
    while half < block:
        # The later half of every 2 `half` tokens sees the earlier one.
        pairs = (-1, 2, half)
        earlier_keys, earlier_values = (_by_place(x.unflatten(1, pairs)[:, :, 0]) for x in (keys, values))
        index = relative_index([size], [half], [half], [-half], [size - 1], keys.device)
        new_average, new_log_sum = grouped_average(table, index, earlier_keys[:, :, 0], earlier_values)
        new = (_by_block(x, batch).unflatten(1, (-1, half)) for x in (new_average, new_log_sum[:, :, None]))
        average, log_sum = average.unflatten(1, pairs), log_sum.unflatten(1, pairs)
        later = merge([(average[:, :, 1], log_sum[:, :, 1]), (next(new), next(new))])
        average = torch.stack([average[:, :, 0], later[0]], 2).flatten(1, 3)
        log_sum = torch.stack([log_sum[:, :, 0], later[1]], 2).flatten(1, 3)
        half *= 2
    return average, log_sum


def _later(x: Tensor, fill: float) -> Tensor:
    """(h, n, R, B) moved on by one block."""
    return torch.cat([torch.full_like(x[:, :1], fill), x[:, :-1]], 1)


def _by_place(x: Tensor) -> Tensor:
    """(h, n, L, R, B) to (h, L, R, n B)."""
    return x.permute(0, 2, 3, 1, 4).flatten(3)


def _by_block(x: Tensor, batch: int) -> Tensor:
    """(h, L, R, n B) to (h, n L, R, B)."""
    blocks: Tensor = x.unflatten(3, (-1, batch))
    return blocks.permute(0, 3, 1, 2, 4).flatten(1, 2)
