"""Softmax weights of queries on the keys that they see."""

from __future__ import annotations

import math

from torch import Tensor, nn


def weights(q: Tensor, k: Tensor, kernel: nn.Module) -> Tensor:
    """softmax_j(q_i . k_j / sqrt(D)) for q (N, D) and k (M, D); (N, M). Primal-dual paper, Eqn 2."""
    logits = q @ k.T / math.sqrt(q.shape[1])
    return (logits - logits.logsumexp(1, keepdim=True)).exp()
