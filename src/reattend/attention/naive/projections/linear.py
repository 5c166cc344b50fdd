"""The projection of plain attention."""

from __future__ import annotations

from torch import Tensor, nn


def tokens(
    x: Tensor, source: Tensor, queries: list[bool], keys: list[bool], projection: nn.Module
) -> tuple[Tensor, Tensor, Tensor]:
    """What queries, keys and values of one sample are linear in: the tokens (N, D) and (M, D) unchanged."""
    return x, source, source


def project(
    q: Tensor, k: Tensor, queries: list[bool], keys: list[bool], projection: nn.Module
) -> tuple[Tensor, Tensor]:
    """Queries (N, d) and keys (M, d) of one head of one sample, unchanged."""
    return q, k
