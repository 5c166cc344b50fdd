"""The heads of one linear layer's output."""

from __future__ import annotations

from torch import Tensor


def split_heads(x: Tensor, dim: int, num_heads: int) -> tuple[Tensor, ...]:
    """(B, N, P D) to P views (B, H, N, d), P being 3 for queries, keys and values.

    So split, the gradients come together by whole rows of D.
    """
    return tuple(part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in x.split(dim, -1))
