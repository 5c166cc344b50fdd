"""Averages over the union of keys, from averages over parts of them and the logarithms of their normalisers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reattend.attention.ops.tile_average import gather, spread

Average = tuple[Tensor, Tensor]


def merge(parts: Sequence[Average]) -> Average:
    """The average over the union of the parts' keys, and its log_sum.

    Args:
        parts: pairs of average (..., C R) and log_sum (..., C), which may also broadcast against the average.
    """
    averages, log_sums = zip(*parts, strict=True)
    average, log_sum = torch.ops.reattend.merge_averages(list(averages), list(log_sums))
    return average, log_sum


def running(part: Average, dim: int) -> Average:
    """Averages over all parts up to each one along `dim`; no later part moves them by a bit."""
    average, log_sum = part
    length, step = average.shape[dim], 1
    while step < length:
        rest = length - step
        later = [(average.narrow(dim, start, rest), log_sum.narrow(dim, start, rest)) for start in (step, 0)]
        new_average, new_log_sum = merge(later)
        average = torch.cat([average.narrow(dim, 0, step), new_average], dim)
        log_sum = torch.cat([log_sum.narrow(dim, 0, step), new_log_sum], dim)
        step *= 2
    return average, log_sum


@torch.library.custom_op("reattend::merge_averages", mutates_args=())
def _merge(averages: Sequence[Tensor], log_sums: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    shares, total, largest = _shares(log_sums)
    average = spread(shares[0], averages[0]) * averages[0]
    for share, part in zip(shares[1:], averages[1:], strict=True):
        average.addcmul_(spread(share, part), part)
    return average.contiguous(), total.log_().add_(largest).contiguous()


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
        d_averages.append((spread(share, part) * d_average).contiguous())
        of_channels = gather((part - average).mul_(d_average), share)
        d_log_sums.append(of_channels.sum_to_size(share.shape).add(d_log_sum).mul_(share).contiguous())
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
