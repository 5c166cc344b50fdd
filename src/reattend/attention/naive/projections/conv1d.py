"""The projection that convolves queries and keys along the sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.projections.conv1d import Conv1dProjection


def tokens(
    x: Tensor, source: Tensor, queries: list[bool], keys: list[bool], projection: Conv1dProjection
) -> tuple[Tensor, Tensor, Tensor]:
    """What queries, keys and values of one sample are linear in: the tokens (N, D) and (M, D) unchanged."""
    return x, source, source


def project(
    q: Tensor, k: Tensor, queries: list[bool], keys: list[bool], projection: Conv1dProjection
) -> tuple[Tensor, Tensor]:
    """Conv1D of queries (N, d) and of keys (M, d) of one head of one sample. Primal-dual paper, Appendix H, Def 4."""
    return _convolve(q, queries, projection), _convolve(k, keys, projection)


def _convolve(x: Tensor, real: list[bool], projection: Conv1dProjection) -> Tensor:
    """sum_o w_o x_{i + o - floor((s - 1) / 2)} over the real tokens after the prefix."""
    weight, prefix = projection.weight.double(), projection.prefix_tokens
    rows = list(x[:prefix])
    for i in range(prefix, len(x)):
        row = torch.zeros_like(x[i])
        for o in range(len(weight)):
            j = i + o - (len(weight) - 1) // 2
            if prefix <= j < len(x) and real[j]:
                row = row + weight[o] * x[j]
        rows.append(row)
    return torch.stack(rows) if rows else x
