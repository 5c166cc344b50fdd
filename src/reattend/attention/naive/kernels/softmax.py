"""Softmax attention of one head of one sample."""

from __future__ import annotations

import math

from torch import Tensor, nn

from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: nn.Module, tokens: Tokens) -> Tensor:
    """sum_j softmax_j(q_i . k_j / sqrt(D)) v_j for q (N, D), k and v (M, D). Primal-dual paper, Eqn 2."""
    logits = q @ k.T / math.sqrt(q.shape[1])
    return (logits - logits.logsumexp(1, keepdim=True)).exp() @ v
