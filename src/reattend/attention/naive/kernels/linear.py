"""Linear attention of one head of one sample."""

from __future__ import annotations

import importlib

from torch import Tensor

from reattend.attention.kernels.linear import LinearKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: LinearKernel, tokens: Tokens) -> Tensor:
    """sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j) for q (N, D), k and v (M, D).

    Primal-dual paper, Eqn 27.
    """
    name = type(kernel.feature_map).__module__.rpartition(".")[2]
    feature_map = importlib.import_module(f"reattend.attention.naive.feature_maps.{name}")
    log_q, log_k = feature_map.log_features(q), feature_map.log_features(k)
    log_similarity = (log_q[:, None, :] + log_k[None, :, :]).logsumexp(2)
    weights: Tensor = (log_similarity - log_similarity.logsumexp(1, keepdim=True)).exp()
    return weights @ v
