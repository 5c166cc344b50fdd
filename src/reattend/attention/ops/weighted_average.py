"""Averages with weights exp(key + bias), which the Attention Free Transformer is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.tile_average import tile_average, tile_gradients


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


@torch.library.custom_op("reattend::weighted_average", mutates_args=())
def _weighted_average(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    with without_autocast(bias):
        return tile_average(bias, key, value)


@_weighted_average.register_fake
def _(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    shape = bias.shape[:2]
    return value.new_empty(*shape, value.shape[-1]), value.new_empty(*shape, key.shape[-1])


@torch.library.custom_op("reattend::weighted_average_backward", mutates_args=())
def _weighted_average_backward(
    bias: Tensor, key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    with without_autocast(bias):
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
