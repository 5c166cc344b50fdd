"""Softmax attention to a pattern of keys by FlexAttention, for CUDA devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def attend_pattern(
    q: Tensor, k: Tensor, v: Tensor, sees: Callable[[Tensor, Tensor], Tensor], real: Tensor | None = None
) -> Tensor:
    """Softmax attention of token i to the tokens j with `sees(i, j)`; tiles of 128 by 128 without any are left out.

    On a CPU there is no backward pass.

    Args:
        q: (B, H, N, D).
        k: (B, H, N, D).
        v: (B, H, N, D).
        sees: from indices of tokens, tensors of no dimension, to a bool tensor.
        real: (B, N), True at real tokens; None if all are.

    Returns:
        (B, H, N, D), zero for a query that sees no real key.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # Takes seconds to import.

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = sees(i, j)
        return seen if real is None else seen & real[b, j]

    batch = None if real is None else q.shape[0]
    mask = create_block_mask(visible, batch, None, q.shape[2], k.shape[2], device=str(q.device))
    flex: Any = flex_attention
    out: Tensor = (_compiled(flex) if q.is_cuda else flex)(q, k, v, block_mask=mask)
    return out


@functools.cache
def _compiled(attend: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(attend)  # Otherwise it forms the whole weights.
