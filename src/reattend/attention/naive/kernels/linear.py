"""Linear-kernel weights of queries on the keys that they see."""

from __future__ import annotations

import importlib

from torch import Tensor

from reattend.attention.kernels.linear import LinearKernel


def weights(q: Tensor, k: Tensor, kernel: LinearKernel) -> Tensor:
    """phi(q_i) . phi(k_j) / sum_j phi(q_i) . phi(k_j) for q (N, D) and k (M, D); (N, M). Primal-dual paper, Eqn 27."""
    name = type(kernel.feature_map).__module__.rpartition(".")[2]
    feature_map = importlib.import_module(f"reattend.attention.naive.feature_maps.{name}")
    log_q, log_k = feature_map.log_features(q), feature_map.log_features(k)
    log_similarity = (log_q[:, None, :] + log_k[None, :, :]).logsumexp(2)
    normalised: Tensor = (log_similarity - log_similarity.logsumexp(1, keepdim=True)).exp()
    return normalised
