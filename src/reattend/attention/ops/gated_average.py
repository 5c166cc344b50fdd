"""A sigmoid gate times the average over all tokens with weights exp(key): all of AFT-simple between its linear layers.

In one operator, because queries, keys and values come side by side from one linear layer: their gradients are written
side by side as well, where autograd would make three tensors and copy them into one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gated_average(qkv: Tensor, mask: Tensor | None = None) -> Tensor:
    """sigmoid(q_t) * sum_s softmax_s(k_s) v_s, the softmax over tokens, channel by channel.

    Args:
        qkv: (B, N, 3 C), float32 or float64: queries, keys and values of C channels each.
        mask: (B, N), True at tokens that are averaged over; None for all.

    Returns:
        (B, N, C), zero where there is no token to average over.
    """
    y: Tensor = torch.ops.reattend.gated_average(qkv, mask)[0]
    return y


@torch.library.custom_op("reattend::gated_average", mutates_args=())
def _gated_average(qkv: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value = qkv.chunk(3, -1)
    if mask is not None:
        key = key.masked_fill(~mask[..., None], -torch.inf)
    largest = key.amax(1, keepdim=True)
    share = (key - torch.where(largest.isinf(), 0.0, largest)).exp_()
    normaliser = share.sum(1, keepdim=True)
    share.div_(torch.where(normaliser > 0, normaliser, 1.0))
    product = share * value
    average = product.sum(1, keepdim=True)
    gate = query.clone(memory_format=torch.contiguous_format).sigmoid_()  # sigmoid is slow on the strided part
    return torch.mul(gate, average, out=product), average, gate, share


@_gated_average.register_fake
def _(qkv: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, channels = qkv.shape
    y = qkv.new_empty(batch, length, channels // 3)
    return y, qkv.new_empty(batch, 1, channels // 3), torch.empty_like(y), torch.empty_like(y)


@torch.library.custom_op("reattend::gated_average_backward", mutates_args=())
def _gated_average_backward(qkv: Tensor, average: Tensor, gate: Tensor, share: Tensor, d_y: Tensor) -> Tensor:
    value = qkv.chunk(3, -1)[2]
    d_qkv = torch.empty_like(qkv)
    d_query, d_key, d_value = d_qkv.chunk(3, -1)
    gated = d_y * gate
    torch.mul(share, gated.sum(1, keepdim=True), out=d_value)
    torch.sub(value, average, out=d_key).mul_(d_value)
    torch.mul(gated.addcmul_(gated, gate, value=-1.0), average, out=d_query)
    return d_qkv


@_gated_average_backward.register_fake
def _(qkv: Tensor, average: Tensor, gate: Tensor, share: Tensor, d_y: Tensor) -> Tensor:
    return torch.empty_like(qkv)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, d_y: Tensor, *_: Any) -> tuple[Tensor, None]:
    return torch.ops.reattend.gated_average_backward(*ctx.saved_tensors, d_y), None


_gated_average.register_autograd(_differentiate, setup_context=_keep)
