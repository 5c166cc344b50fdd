"""Softmax attention whose logits are products of two short rows, which each query has of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ELEMENTS = 2**21  # Of the weights that are formed at a time.


def tiled_softmax(a: Tensor, b: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """h_i = sum_j softmax_j(a_i[j // F] b_i[j mod F]) v_j.

    Weights are formed for a block of queries at a time, and again in the backward pass: memory is linear in length.

    Args:
        a: (B, H, N, E), float32 or float64.
        b: (B, H, N, F), E F at least M.
        v: (B, H, M, D).
        mask: (B, M), True at real keys.
        causal: query i sees keys 0 to i only; N is then M.

    Returns:
        (B, H, N, D), zero with zero gradient for a query that sees no key.
    """
    out: Tensor = _TiledSoftmax.apply(a, b, v, mask, causal)
    return out


def tiled_logits(a: Tensor, b: Tensor, num_keys: int) -> Tensor:
    """a[j // F] b[j mod F] for keys j from 0: (..., M) from (..., E) and (..., F)."""
    tiles = -(-num_keys // b.shape[-1])
    return (a[..., :tiles, None] * b[..., None, :]).flatten(-2)[..., :num_keys]


class _TiledSoftmax(torch.autograd.Function):
    """Keeps the inputs and the log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        out, lse = v.new_empty(*a.shape[:3], v.shape[3]), v.new_empty(*a.shape[:3], 1)
        for rows, keys in _blocks(a, v, causal):
            logits = _visible_logits(a, b, mask, rows, keys, causal)
            lse[:, :, rows] = logits.logsumexp(-1, keepdim=True)
            out[:, :, rows] = _weights(logits, lse[:, :, rows]) @ v[:, :, :keys]
        ctx.save_for_backward(a, b, v, mask, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, v, mask, out, lse = ctx.saved_tensors
        of_a, of_b, of_v = torch.zeros_like(a), torch.empty_like(b), torch.zeros_like(v)
        for rows, keys in _blocks(a, v, ctx.causal):
            weights = _weights(_visible_logits(a, b, mask, rows, keys, ctx.causal), lse[:, :, rows])
            g = grad[:, :, rows]
            of_v[:, :, :keys] += weights.mT @ g
            centre = (g * out[:, :, rows]).sum(-1, keepdim=True)
            of_logits = weights * (g @ v[:, :, :keys].mT - centre)
            tiles = -(-keys // b.shape[3])
            of_logits = torch.nn.functional.pad(of_logits, (0, tiles * b.shape[3] - keys)).unflatten(3, (tiles, -1))
            of_a[:, :, rows, :tiles] = (of_logits @ b[:, :, rows, :, None]).squeeze(-1)
            of_b[:, :, rows] = (a[:, :, rows, None, :tiles] @ of_logits).squeeze(-2)
        return of_a, of_b, of_v, None, None


def _blocks(a: Tensor, v: Tensor, causal: bool) -> Iterator[tuple[slice, int]]:
    """Blocks of queries, and the number of keys that they may see."""
    batch, heads, length, _ = a.shape
    size = max(1, ELEMENTS // max(1, batch * heads * v.shape[2]))
    for start in range(0, length, size):
        stop = min(start + size, length)
        yield slice(start, stop), stop if causal else v.shape[2]


def _visible_logits(a: Tensor, b: Tensor, mask: Tensor | None, rows: slice, keys: int, causal: bool) -> Tensor:
    logits = tiled_logits(a[:, :, rows], b[:, :, rows], keys)
    if causal:
        queries = torch.arange(rows.start, rows.stop, device=a.device)
        logits = logits.masked_fill(queries[:, None] < torch.arange(keys, device=a.device), -math.inf)
    return logits if mask is None else logits.masked_fill(~mask[:, None, None, :keys], -math.inf)


def _weights(logits: Tensor, lse: Tensor) -> Tensor:
    return (logits - lse.masked_fill(lse == -math.inf, 0.0)).exp()
