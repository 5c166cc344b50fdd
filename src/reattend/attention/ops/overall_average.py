"""Average over all tokens with weights exp(key), channel by channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reattend.attention.ops.tile_average import gather, spread


def overall_average(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The average of all values and the logarithm of its normaliser; gradients keep no weights.

    Args:
        key: (B, N, C), float32 or float64, -inf where there is no key.
        value: (B, N, C R): R channels in turn share one of `key`.

    Returns:
        average (B, 1, C R), zero where there is no key, and log_sum (B, 1, C), then -inf.
    """
    average, log_sum = torch.ops.reattend.overall_average(key, value)
    return average, log_sum


@torch.library.custom_op("reattend::overall_average", mutates_args=())
def _overall_average(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    largest = key.amax(1, keepdim=True)
    largest = torch.where(largest.isinf(), 0.0, largest)
    weight = (key - largest).exp_()
    normaliser = weight.sum(1, keepdim=True)
    weighted = weight.mul_(value) if weight.shape == value.shape else spread(weight, value) * value
    numerator = weighted.sum(1, keepdim=True)
    safe = torch.where(normaliser > 0, normaliser, 1.0)
    return numerator / spread(safe, value), normaliser.log().add_(largest)


@_overall_average.register_fake
def _(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return value.new_empty(value.shape[0], 1, value.shape[2]), key.new_empty(key.shape[0], 1, key.shape[2])


@torch.library.custom_op("reattend::overall_average_backward", mutates_args=())
def _overall_average_backward(
    key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> tuple[Tensor, Tensor]:
    share = (key - torch.where(log_sum.isinf(), 0.0, log_sum)).exp_()
    d_value = spread(share, value) * d_average
    d_key = gather((value - average).mul_(d_value), key)
    return d_key.addcmul_(share, d_log_sum), d_value


@_overall_average_backward.register_fake
def _(
    key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> tuple[Tensor, Tensor]:
    return key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx: Any, d_average: Tensor, d_log_sum: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = torch.ops.reattend.overall_average_backward(
        *ctx.saved_tensors, d_average, d_log_sum
    )
    return gradients


_overall_average.register_autograd(_differentiate, setup_context=_keep)
