"""Averages over the past with weights exp(key), channel by channel, as a linear recurrence in chunks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.tile_average import gather, spread

# Stands for the logarithm of zero where -inf - (-inf) would be no number.
NOTHING = -1e30


def running_average(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Averages of all values so far and the logarithm of their normaliser.

        average_tc = sum_{s<=t} exp(key_sc) value_sc / sum_{s<=t} exp(key_sc),   log_sum_tc = log of the denominator

    Time and memory are linear in N. Sums are relative to the largest key so far, so no exponent is positive and no
    result moves by a bit with later tokens.

    Args:
        key: (B, N, C), -inf where there is no key.
        value: (B, N, C R): R channels in turn share one of `key`.

    Returns:
        average (B, N, C R), zero where there is no key yet, and log_sum (B, N, C), then -inf.
    """
    average, log_sum = torch.ops.reattend.running_average(key, value)
    return average, log_sum


@torch.library.custom_op("reattend::running_average", mutates_args=())
def _running_average(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    largest = _running_maximum(key).clamp_(min=NOTHING)
    decay = (F.pad(largest[:, :-1], (0, 0, 1, 0), value=NOTHING) - largest).exp_()
    weight = (key - largest).exp_()
    numerator, normaliser = recurrence(decay, [spread(weight, value) * value, weight])
    log_sum = normaliser.log().add_(largest)
    average = numerator.div_(spread(torch.where(normaliser > 0, normaliser, 1.0), value))
    return average.contiguous(), log_sum.contiguous()


@_running_average.register_fake
def _(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return value.new_empty(value.shape), key.new_empty(key.shape)


@torch.library.custom_op("reattend::running_average_backward", mutates_args=())
def _running_average_backward(
    key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> tuple[Tensor, Tensor]:
    """d_value = exp(key - z) U and d_key = exp(key - z) (value U - W), z the log_sum.

    U_s = sum_{t>=s} exp(z_s - z_t) d_average_t, and W is the same of average * d_average - d_log_sum.
    """
    log_sum = log_sum.clamp(min=NOTHING)
    decay = F.pad((log_sum[:, :-1] - log_sum[:, 1:]).exp_(), (0, 0, 0, 1))
    of_log_sum = gather(average * d_average, key).sub_(d_log_sum)
    of_average, of_log_sum = recurrence(decay, [d_average, of_log_sum], reverse=True)
    weight = (key - log_sum).exp_()
    d_key = gather(value * of_average, key).sub_(of_log_sum).mul_(weight)
    return d_key.contiguous(), of_average.mul_(spread(weight, value)).contiguous()


@_running_average_backward.register_fake
def _(
    key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> tuple[Tensor, Tensor]:
    return key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx: Any, d_average: Tensor, d_log_sum: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = torch.ops.reattend.running_average_backward(
        *ctx.saved_tensors, d_average, d_log_sum
    )
    return gradients


_running_average.register_autograd(_differentiate, setup_context=_keep)


def recurrence(decay: Tensor, inputs: list[Tensor], reverse: bool = False) -> list[Tensor]:
    """h_t = decay_t h_{t-1} + x_t from h_{-1} = 0 along N, for each x; in reverse h_t = decay_t h_{t+1} + x_t.

    All chunks of about sqrt(N) tokens go through each of their tokens at once, then one chunk after another gets what
    came before it.

    Args:
        decay: (B, N, C), from 0 to 1.
        inputs: each x (B, N, C R): R channels in turn share a decay.
        reverse: from the last token to the first.
    """
    length = decay.shape[1]
    decay = _chunks(decay).unsqueeze(-1)
    outs = [_chunks(x).unflatten(-1, (decay.shape[3], -1)) for x in inputs]
    size, count = decay.shape[2], decay.shape[1]
    steps, last = (range(size - 2, -1, -1), 1) if reverse else (range(1, size), -1)
    for t in steps:
        for x in outs:
            x[:, :, t].addcmul_(decay[:, :, t], x[:, :, t + last])
    if count > 1:
        # From here on the product of the decays between the token and the edge that others enter the chunk by.
        for t in steps:
            decay[:, :, t].mul_(decay[:, :, t + last])
        edge = 0 if reverse else -1
        to, start = (slice(None, -1), slice(1, None)) if reverse else (slice(1, None), slice(None, -1))
        for x in outs:
            ends = x[:, :, edge].clone()
            for n in range(count - 2, -1, -1) if reverse else range(1, count):
                ends[:, n].addcmul_(decay[:, n, edge], ends[:, n + last])
            x[:, to].addcmul_(decay[:, to], ends[:, start, None])
    return [x.flatten(3).flatten(1, 2)[:, :length] for x in outs]


def _running_maximum(x: Tensor) -> Tensor:
    length, x = x.shape[1], _chunks(x)
    for t in range(1, x.shape[2]):
        torch.maximum(x[:, :, t], x[:, :, t - 1], out=x[:, :, t])
    ends = x[:, :, -1].clone()
    for n in range(1, x.shape[1]):
        torch.maximum(ends[:, n], ends[:, n - 1], out=ends[:, n])
    torch.maximum(x[:, 1:], ends[:, :-1, None], out=x[:, 1:])
    largest: Tensor = x.flatten(1, 2)[:, :length]
    return largest


def _chunks(x: Tensor) -> Tensor:
    """A copy (B, N / L, L, C) of (B, N, C) with L about sqrt(N), padded at the end with zeros."""
    size = max(1, math.isqrt(x.shape[1]))
    count = -(-x.shape[1] // size)
    chunks = x.new_empty(x.shape[0], count * size, x.shape[2])
    chunks[:, : x.shape[1]] = x
    chunks[:, x.shape[1] :] = 0
    cut: Tensor = chunks.unflatten(1, (count, size))
    return cut
