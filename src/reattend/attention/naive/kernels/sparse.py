"""Attention of one head of one sample to a sparse pattern of keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.kernels.sparse import SparseKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: SparseKernel, tokens: Tokens) -> Tensor:
    """sum_{j in S_i} softmax_j(q_i . k_j / sqrt(D)) v_j for q (N, D), k and v (M, D); zero where S_i is empty.

    Child et al. 2019, section 4.2; a key is in S_i if one of its tokens is.
    """
    rows = []
    for i in range(q.shape[0]):
        seen = [j for j, members in enumerate(tokens.keys) if any(sees(i, token, kernel) for token in members)]
        logits = k[seen] @ q[i] / math.sqrt(q.shape[1])
        rows.append((logits - logits.logsumexp(0)).exp() @ v[seen] if seen else torch.zeros_like(q[i]))
    return torch.stack(rows)


def sees(i: int, j: int, kernel: SparseKernel) -> bool:
    """Whether the pattern lets token i see token j; what is in the future is not asked."""
    i, j, window = i - kernel.prefix, j - kernel.prefix, kernel.window
    if i < 0 or j < 0:
        return True
    if kernel.pattern == "strided":
        return abs(i - j) < window or (i - j) % window == 0
    return i // window == j // window or j % window >= window - kernel.num_summaries
