"""Attention of blocks of queries, each to keys of its own: memory linear in length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from reattend.attention.ops.attend_with_lse import attend_with_lse

SMALLEST_BLOCK = 64  # Below this a block of queries costs more than its multiplications.

Visible = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend_blocks(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """`attend_with_lse` of G blocks, whose masks need not be written out for samples and heads.

    Args:
        q: (B, H, G, Q, D).
        k: (B, H, G, K, D).
        v: (B, H, G, K, D).
        mask: (B or 1, G or 1, Q or 1, K), True where a query sees a key.
        causal: query i of a block sees its keys 0 to i only.

    Returns:
        Output (B, H, G, Q, D) and log-sum-exp (B, H, G, Q).
    """
    batch, heads, blocks = q.shape[:3]
    if mask is None or mask.shape[0] == 1:  # Blocks are the batch, and samples are further heads.
        q, k, v = (x.permute(2, 0, 1, 3, 4).flatten(1, 2) for x in (q, k, v))
        mask = None if mask is None else mask[0].unsqueeze(1)
        back = (1, 2, 0)
        sizes = (blocks, batch, heads)
    elif mask.shape[1] == 1:  # Blocks are further heads.
        q, k, v = (x.flatten(1, 2) for x in (q, k, v))
        back = (0, 1, 2)
        sizes = (batch, heads, blocks)
    else:
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        mask = mask.flatten(0, 1).unsqueeze(1)
        back = (0, 2, 1)
        sizes = (batch, blocks, heads)
    out, lse = attend_with_lse(q, k, v, mask, causal)
    return (
        out.reshape(*sizes, *out.shape[2:]).permute(*back, 3, 4),
        lse.reshape(*sizes, lse.shape[2]).permute(*back, 3),
    )


def attend_near(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visible,
    *,
    block: int,
    before: int,
    after: int,
    real: Tensor | None = None,
    scale: int = 1,
) -> tuple[Tensor, Tensor]:
    """Attention to keys near the query: time and memory O(N (block + before + after)).

    Args:
        q: (B, H, N, D).
        k: (B, H, M, D), M = ceil(N / `scale`): key j stands for tokens j `scale` to (j + 1) `scale` - 1.
        v: (B, H, M, D).
        visible: from positions of queries (Q, 1, 1) and tokens (K, `scale`), counted from the first query of a block,
            and which of the tokens are real, (B or 1, G, 1, K, `scale`), to the mask (B or 1, G, Q, K) of the keys that
            a query sees.
        block: number of queries that are taken together, a multiple of `scale`. `visible` must not change when all
            positions grow by a multiple of it.
        before: no query sees a key all of whose tokens are more than this before it.
        after: no query sees a key all of whose tokens are more than this after it.
        real: (B, N), True at real tokens; None if all are.
        scale: number of tokens that a key stands for.

    Returns:
        Output (B, H, N, D) and log-sum-exp (B, H, N).
    """
    length = q.shape[2]
    if block >= length:
        block, before, after = round_up(length, scale), 0, 0
    before, after = round_up(before, scale), round_up(after, scale)
    count = -(-length // block)
    size = before + block + after
    if real is None:
        real = torch.ones(1, length, dtype=torch.bool, device=q.device)
    padded = F.pad(real, (before, count * block + after - length))
    exists = padded.unfold(1, size, block).unflatten(2, (-1, scale)).unsqueeze(2)
    positions = torch.arange(-before, block + after, device=q.device)
    mask = visible(positions[before : before + block, None, None], positions.view(-1, scale), exists)
    queries = F.pad(q, (0, 0, 0, count * block - length)).unflatten(2, (count, block))
    keys, values = (_Windows.apply(x, before // scale, size // scale, block // scale, count) for x in (k, v))
    out, lse = attend_blocks(queries, keys, values, mask)
    return out.flatten(2, 3)[:, :, :length], lse.flatten(2, 3)[:, :, :length]


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple that is not below `number`."""
    return -(-number // multiple) * multiple


class _Windows(torch.autograd.Function):
    """Overlapping windows (B, H, count, size, D) of (B, H, M, D): window g starts at g step - before, zeros outside.

    A view of one padded copy; the gradient is summed window by window, which `unfold`'s own does several times slower.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: int, size: int, step: int, count: int) -> Tensor:
        ctx.length, ctx.before, ctx.step = x.shape[2], before, step
        after = (count - 1) * step + size - before - x.shape[2]
        return F.pad(x, (0, 0, before, after)).unfold(2, size, step).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        batch, heads, count, size, dim = grad.shape
        total = grad.new_zeros(batch, heads, count + -(-size // ctx.step) - 1, ctx.step, dim)
        for start in range(0, size, ctx.step):
            part = grad[:, :, :, start : start + ctx.step]
            total[:, :, start // ctx.step :][:, :, :count, : part.shape[3]] += part
        return total.flatten(2, 3)[:, :, ctx.before : ctx.before + ctx.length], None, None, None, None
