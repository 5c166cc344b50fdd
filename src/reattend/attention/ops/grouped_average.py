"""Averages with weights exp(key + bias), groups of columns with one key each, biases out of a short table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from reattend.attention.ops import weighted_average  # noqa: F401  Registers the operators of the fallback.
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.tile_average import DEEPEST, steep

FALLBACK_ELEMENTS = 2**22


def grouped_average(table: Tensor, index: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Averages of values and the logarithm of their normaliser.

        average_trg = sum_s exp(key_sg + bias_ts) value_srg / sum_s exp(key_sg + bias_ts),   bias_ts = table[index_ts]
        log_sum_tg = log sum_s exp(key_sg + bias_ts)

    One matrix product for each block, whose exponentials are those of the table. A group whose keys and biases lie too
    far apart for that goes through `weighted_average`; the choice is made for each group on its own, so that no group's
    result moves by a bit when another one changes: groups are samples, or windows of a sequence.

    Args:
        table: (n, K), -inf for what is not seen.
        index: (T, S), from 0 to K - 1.
        key: (n, S, G), -inf where there is no key.
        value: (n, S, R, G).

    Returns:
        average (n, T, R, G), zero where a row sees no key, and log_sum (n, T, G), then -inf.
    """
    average, log_sum = torch.ops.reattend.grouped_average(table, index, key, value)
    return average, log_sum


@torch.library.custom_op("reattend::grouped_average", mutates_args=())
def _grouped_average(table: Tensor, index: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weight, table_shift = _exponentials(table)
    position = _looked_up(weight, index)
    columns, group_shift = _columns(key, value)
    sums = _product(position, columns.flatten(2)).unflatten(2, columns.shape[2:])
    normaliser = sums[:, :, -1]
    average = sums[:, :, :-1] / torch.where(normaliser > 0, normaliser, 1.0)[:, :, None]
    log_sum = normaliser.log().add_(table_shift[..., None]).add_(group_shift)
    for block, group in _lost(table, index, key, normaliser):
        inputs = _looked_up(table, index)[block], key[block, :, group, None], value[block, :, :, group]
        found = torch.ops.reattend.weighted_average(*inputs)
        average[block, :, :, group], log_sum[block, :, group] = found[0], found[1][..., 0]
    return average, log_sum


@_grouped_average.register_fake
def _(table: Tensor, index: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    (rows, _), (blocks, _, groups) = index.shape, key.shape
    return value.new_empty(blocks, rows, value.shape[2], groups), value.new_empty(blocks, rows, groups)


@torch.library.custom_op("reattend::grouped_average_backward", mutates_args=())
def _grouped_average_backward(
    table: Tensor,
    index: Tensor,
    key: Tensor,
    value: Tensor,
    average: Tensor,
    log_sum: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    weight, table_shift = _exponentials(table)
    position = _looked_up(weight, index)
    columns, group_shift = _columns(key, value)
    scale = group_shift - log_sum
    scale.add_(table_shift[..., None]).masked_fill_(log_sum.isinf(), -math.inf)
    lost = []
    if scale.numel() and bool(scale.amax() > DEEPEST[key.dtype] / 2):
        of_scale, of_average, of_log_sum = (x.movedim(-1, 1).flatten(0, 1) for x in (scale, d_average, d_log_sum))
        chosen = steep(of_scale, of_average, of_log_sum, DEEPEST[key.dtype])
        lost = list(_some(chosen.view(len(key), -1), index))
    for block, group in lost:
        scale[block, :, group] = -math.inf
    scale.exp_()
    d_sums = columns.new_empty(*average.shape[:2], columns.shape[2], average.shape[3])
    torch.mul(d_average, scale[:, :, None], out=d_sums[:, :, :-1])
    torch.mul(d_log_sum - (average * d_average).sum(2), scale, out=d_sums[:, :, -1])
    d_position = _product(d_sums.flatten(2), columns.flatten(2).mT)
    d_table = _summed(d_position, index, table).mul_(weight)
    d_columns = _product(position.mT, d_sums.flatten(2)).unflatten(2, columns.shape[2:])
    d_value = d_columns[:, :, :-1] * columns[:, :, -1:]
    # columns are weight * value beside weight.
    d_key = d_columns.mul_(columns).sum(2)
    for block, group in lost:
        inputs = _looked_up(table, index)[block], key[block, :, group, None], value[block, :, :, group]
        averages = (x[block, :, :, group] for x in (average, log_sum[:, :, None], d_average, d_log_sum[:, :, None]))
        found = torch.ops.reattend.weighted_average_backward(*inputs, *averages)
        d_table.index_add_(0, block, _summed(found[0], index, table[block]))
        d_key[block, :, group], d_value[block, :, :, group] = found[1][..., 0], found[2]
    return d_table, d_key, d_value


@_grouped_average_backward.register_fake
def _(
    table: Tensor,
    index: Tensor,
    key: Tensor,
    value: Tensor,
    average: Tensor,
    log_sum: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return table.new_empty(table.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx: Any, d_average: Tensor, d_log_sum: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
    for_table, for_key, for_value = torch.ops.reattend.grouped_average_backward(
        *ctx.saved_tensors, d_average, d_log_sum
    )
    return for_table, None, for_key, for_value


_grouped_average.register_autograd(_differentiate, setup_context=_keep)


def _product(a: Tensor, b: Tensor) -> Tensor:
    # A backward pass may run under autocast even where the forward pass was kept out of it.
    with without_autocast(a):
        return a @ b


def _exponentials(table: Tensor) -> tuple[Tensor, Tensor]:
    """exp(table - shift) and the shift (n, 1)."""
    shift = _shift(table, 1)
    return (table - shift).exp_(), shift


def _looked_up(table: Tensor, index: Tensor) -> Tensor:
    """(n, K) to (n, T, S)."""
    return table.index_select(1, index.reshape(-1)).view(len(table), *index.shape)


def _summed(x: Tensor, index: Tensor, table: Tensor) -> Tensor:
    """Sums (n, K) of the entries of (n, T, S) that are of one place of the table."""
    places = index.reshape(1, -1).expand(len(table), -1)
    return torch.zeros_like(table).scatter_add_(1, places, x.flatten(1))


def _columns(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted values and the weight as (n, S, R + 1, G), and the shift (n, 1, G)."""
    shift = _shift(key, 1)
    blocks, length, channels, groups = value.shape
    columns = value.new_empty(blocks, length, channels + 1, groups)
    weight = columns[:, :, -1]
    torch.sub(key, shift, out=weight)
    weight.exp_()
    torch.mul(weight[:, :, None], value, out=columns[:, :, :-1])
    return columns, shift


def _shift(x: Tensor, dim: int) -> Tensor:
    """The largest entry along `dim`; zero where there is none."""
    largest = x.amax(dim, keepdim=True)
    return torch.where(largest.isinf(), 0.0, largest)


def _lost(table: Tensor, index: Tensor, key: Tensor, normaliser: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks and groups with a sum that underflowed, some at a time; a sum over no key is a zero that is right."""
    smallest = math.exp(-DEEPEST[key.dtype])
    if normaliser.numel() and bool(normaliser.amin() < smallest):
        is_far = _range(table)[:, None] + _range(key.mT) > DEEPEST[key.dtype]
        yield from _some((normaliser < smallest).any(1) & is_far, index)


def _range(x: Tensor) -> Tensor:
    """Largest difference of two finite entries of a row, (..., S) to (...)."""
    largest = _shift(x, -1)
    return (largest - torch.where(x.isinf(), largest, x)).amax(-1)


def _some(chosen: Tensor, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices of the blocks and groups in `chosen` (n, G), as many at a time as memory should hold biases for."""
    block, group = chosen.nonzero(as_tuple=True)
    size = max(1, FALLBACK_ELEMENTS // max(1, index.numel()))
    return zip(block.split(size), group.split(size), strict=True) if len(block) else iter(())
