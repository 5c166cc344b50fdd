"""Softmax attention over a set of keys with its log-sum-exp, and the union of such attentions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from reattend.attention.ops.precision import without_autocast


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """sum_j exp(s_ij - lse_i) v_j and lse_i = log sum_j exp(s_ij) with s_ij = q_i . k_j / sqrt(D) + mask_ij.

    Differentiable in both. On a CPU one fused call whose memory is linear in Q and K, elsewhere written out. Many small
    blocks in one call, as batch or heads, cost little more than their multiplications.

    Args:
        q: (B, H, Q, D).
        k: (B, H, K, D).
        v: (B, H, K, D).
        mask: broadcasts to (B, H, Q, K): bool, True where a query sees a key, or a constant that is added to s.
        causal: query i sees keys 0 to i only, of those that `mask` lets it see; Q and K are then equal.

    Returns:
        Output (B, H, Q, D) and log-sum-exp (B, H, Q), float32 at least. A query that sees no key gets zero and -inf,
        both with zero gradient.
    """
    if k.shape[2] == 0 or not q.numel():
        return torch.zeros_like(q), q.new_full(q.shape[:3], -math.inf, dtype=_wide(q))
    blind = None if mask is None else _blind(mask, causal)
    if q.device.type != "cpu":
        return _written_out(q, k, v, mask, blind, causal)
    dtype = q.dtype
    if dtype == torch.float16:  # The backward pass needs a wider range.
        q, k, v = q.float(), k.float(), v.float()
    bias = None
    if mask is not None:
        bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else mask
        bias = bias.to(q.dtype)
    out, lse = _Fused.apply(q, k, v, bias, causal)
    if blind is not None:
        out, lse = out.masked_fill(blind, 0.0), lse.masked_fill(blind.squeeze(-1), -math.inf)
    return out.to(dtype), lse


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention over the union of sets of keys from the attention over each: sum_p softmax_p(lse_p) out_p.

    Args:
        outs: outputs (B, H, Q, D), one of each set; a key that is in two sets counts twice.
        lses: log-sum-exps (B, H, Q).

    Returns:
        Output (B, H, Q, D) and log-sum-exp (B, H, Q) of the union; zero and -inf for a query that sees no key.
    """
    if len(outs) == 1:
        return outs[0], lses[0]
    out, lse = _Merge.apply(torch.stack(tuple(lses)), *outs)
    return out, lse


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _blind(mask: Tensor, causal: bool) -> Tensor:
    """True (..., Q or 1, 1) where a query sees no key."""
    visible = mask if mask.dtype == torch.bool else mask > -math.inf
    if not causal:
        return ~visible.any(-1, keepdim=True)
    if visible.shape[-2] == 1:
        return visible.cumsum(-1).eq(0).mT
    return ~visible.tril().any(-1, keepdim=True)


def _written_out(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, blind: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    with without_autocast(q):
        logits = (q.to(_wide(q)) / math.sqrt(q.shape[-1])) @ k.to(_wide(q)).mT
        if causal:
            past = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
            logits = logits.masked_fill(~past, -math.inf)
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
        if blind is not None:  # A softmax over nothing is NaN; its result is thrown away.
            logits = logits.masked_fill(blind, 0.0)
        lse = logits.logsumexp(-1)
        out = ((logits - lse.unsqueeze(-1)).exp().to(v.dtype) @ v).to(q.dtype)
    if blind is not None:
        out, lse = out.masked_fill(blind, 0.0), lse.masked_fill(blind.squeeze(-1), -math.inf)
    return out, lse


class _Fused(torch.autograd.Function):
    """The fused call, with its log-sum-exp as a second output."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=bias)
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.causal = causal
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        """The fused backward pass, which knows no gradient of the log-sum-exp.

        It has ds_ij = p_ij (grad_i . v_j - grad_i . out_i), and uses out nowhere else; a gradient g_i of lse_i adds
        p_ij g_i. So out_i - g_i u_i with grad_i . u_i = 1 stands in for out_i.
        """
        q, k, v, bias, out, lse = ctx.saved_tensors
        if grad is None:
            grad = torch.zeros_like(out)
        if grad_lse is not None:
            # A row of zeros has no such u; numbers so small are not seen in the gradient of the values.
            grad_lse = grad_lse.unsqueeze(-1)
            smallest = 8 * torch.finfo(lse.dtype).tiny ** 0.5
            square = grad.to(lse.dtype).square().sum(-1, keepdim=True)
            none = square < smallest**2
            grad = torch.where(none & (grad_lse != 0), smallest, grad).to(q.dtype)
            square = torch.where(none, smallest**2 * grad.shape[-1], square)
            out = (out - grad_lse * (grad / square)).to(q.dtype)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, ctx.causal, attn_mask=bias
        )
        return dq, dk, dv, None, None


class _Merge(torch.autograd.Function):
    """sum_p w_p out_p with w = softmax(lse) over the first dimension, and its log-sum-exp."""

    @staticmethod
    def forward(ctx: FunctionCtx, lses: Tensor, *outs: Tensor) -> tuple[Tensor, Tensor]:
        lse = lses.logsumexp(0)
        weights = (lses - lse.masked_fill(lse == -math.inf, 0.0)).exp().unsqueeze(-1)
        out = sum((w * o for w, o in zip(weights[1:], outs[1:], strict=True)), weights[0] * outs[0])
        out = out.to(outs[0].dtype)
        ctx.save_for_backward(weights, out, *outs)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Tensor, ...]:
        weights, out, *outs = ctx.saved_tensors
        grad_lse = grad_lse.unsqueeze(-1)
        grads = [w * ((grad * (o - out)).sum(-1, keepdim=True) + grad_lse) for w, o in zip(weights, outs, strict=True)]
        return (torch.stack(grads).squeeze(-1), *((w * grad).to(grad.dtype) for w in weights))
