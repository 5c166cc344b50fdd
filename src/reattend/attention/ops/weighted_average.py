"""Averages with weights exp(key + bias), which the Attention Free Transformer is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reattend.attention.ops.tile_average import gather, spread, tile_average, tile_gradients


def weighted_average(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Averages of values and the logarithm of their normaliser.

        average_tc = sum_s exp(key_sc + bias_ts) value_sc / sum_s exp(key_sc + bias_ts)
        log_sum_tc = log sum_s exp(key_sc + bias_ts)

    (AFT, Eqn 2 without the gate.) It is computed by two matrix products, and exactly where these would underflow; a
    block's result does not move by a bit when another block changes. Gradients compute exp(bias) again.

    Args:
        bias: (n, T, S), -inf where row t does not see key s.
        key: (n, S, C), float32 or float64, -inf where there is no key; one channel for each R channels of `value`.
        value: (n, S, C R).

    Returns:
        average (n, T, C R), zero where a row sees no key, and log_sum (n, T, C), then -inf.
    """
    average, log_sum = torch.ops.reattend.weighted_average(bias, key, value)
    return average, log_sum


def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The average over the union of the parts' keys, and its log_sum.

    Args:
        parts: pairs of average (..., C R) and log_sum (..., C), which may also broadcast against the average.
    """
    averages, log_sums = zip(*parts, strict=True)
    average, log_sum = torch.ops.reattend.merge_averages(list(averages), list(log_sums))
    return average, log_sum


@torch.library.custom_op("reattend::merge_averages", mutates_args=())
def _merge(averages: Sequence[Tensor], log_sums: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    shares, total, largest = _shares(log_sums)
    average = spread(shares[0], averages[0]) * averages[0]
    for share, part in zip(shares[1:], averages[1:], strict=True):
        average.addcmul_(spread(share, part), part)
    return average, total.log_().add_(largest)


def _shares(log_sums: Sequence[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
    """The shares of the parts, zero where there is no key at all, and their sum before relative to exp(largest)."""
    largest = log_sums[0]
    for log_sum in log_sums[1:]:
        largest = torch.maximum(largest, log_sum)
    largest = torch.where(largest.isinf(), 0.0, largest)
    shares = [(log_sum - largest).exp_() for log_sum in log_sums]
    total = shares[0].clone()
    for share in shares[1:]:
        total += share
    safe = torch.where(total > 0, total, 1.0)
    return [share.div_(safe) for share in shares], total, largest


@_merge.register_fake
def _(averages: Sequence[Tensor], log_sums: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    average, log_sum = averages[0], log_sums[0]
    return average.new_empty(average.shape), log_sum.new_empty(log_sum.shape)


@torch.library.custom_op("reattend::merge_averages_backward", mutates_args=())
def _merge_backward(
    averages: Sequence[Tensor],
    log_sums: Sequence[Tensor],
    average: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
) -> tuple[list[Tensor], list[Tensor]]:
    """Each part's share of d_average, and of d_log_sum + (average_i - average) . d_average."""
    d_averages, d_log_sums = [], []
    for part, share in zip(averages, _shares(log_sums)[0], strict=True):
        d_averages.append(spread(share, part) * d_average)
        of_channels = gather((part - average).mul_(d_average), share)
        d_log_sums.append(of_channels.sum_to_size(share.shape).add(d_log_sum).mul_(share))
    return d_averages, d_log_sums


@_merge_backward.register_fake
def _(
    averages: Sequence[Tensor],
    log_sums: Sequence[Tensor],
    average: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
) -> tuple[list[Tensor], list[Tensor]]:
    return [x.new_empty(x.shape) for x in averages], [x.new_empty(x.shape) for x in log_sums]


def _keep_parts(ctx: Any, inputs: tuple[list[Tensor], list[Tensor]], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[0], *inputs[1], output[0])


def _differentiate_parts(ctx: Any, d_average: Tensor, d_log_sum: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    *parts, average = ctx.saved_tensors
    count = len(parts) // 2
    d_averages, d_log_sums = torch.ops.reattend.merge_averages_backward(
        parts[:count], parts[count:], average, d_average, d_log_sum
    )
    return d_averages, d_log_sums


_merge.register_autograd(_differentiate_parts, setup_context=_keep_parts)


@torch.library.custom_op("reattend::weighted_average", mutates_args=())
def _weighted_average(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return tile_average(bias, key, value)


@_weighted_average.register_fake
def _(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    shape = bias.shape[:2]
    return value.new_empty(*shape, value.shape[-1]), value.new_empty(*shape, key.shape[-1])


@torch.library.custom_op("reattend::weighted_average_backward", mutates_args=())
def _weighted_average_backward(
    bias: Tensor, key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return tile_gradients(bias, key, value, average, log_sum, d_average, d_log_sum)


@_weighted_average_backward.register_fake
def _(
    bias: Tensor, key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return bias.new_empty(bias.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx: Any, d_average: Tensor, d_log_sum: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.reattend.weighted_average_backward(
        *ctx.saved_tensors, d_average, d_log_sum
    )
    return gradients


_weighted_average.register_autograd(_differentiate, setup_context=_keep)
