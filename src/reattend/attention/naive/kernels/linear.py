"""Linear attention of one head of one sample."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor, nn

from reattend.attention.kernels.linear import LinearKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: LinearKernel, tokens: Tokens) -> Tensor:
    """sum_j phi_q(q_i) . phi_k(k_j) v_j / sum_j phi_q(q_i) . phi_k(k_j) for q (N, D), k and v (M, D).

    Primal-dual paper, Eqn 27; zero where the denominator is. Not normalised, the denominator is M^p with p the
    `length_power`.
    """
    similarity = _similarity(q, k, kernel)
    if kernel.normalised:
        total = similarity.sum(1, keepdim=True)
        weights = torch.where(total == 0, 0.0, similarity / torch.where(total == 0, 1.0, total))
    else:
        weights = similarity / len(k) ** kernel.length_power
    return weights @ v


def _similarity(q: Tensor, k: Tensor, kernel: LinearKernel) -> Tensor:
    """phi_q(q_i) . phi_k(k_j), where normalised up to a factor of each row, which cancels."""
    of_queries = kernel.feature_map if kernel.query_feature_map is None else kernel.query_feature_map
    twins = _twin(of_queries), _twin(kernel.feature_map)
    if not (kernel.normalised and all(hasattr(twin, "log_features") for twin in twins)):
        return _features(twins[0], q, of_queries) @ _features(twins[1], k, kernel.feature_map).T
    log_q, log_k = twins[0].log_features(q, of_queries), twins[1].log_features(k, kernel.feature_map)
    largest_q, largest_k = (x.detach().clamp(min=-1e300) for x in (log_q.amax(1, keepdim=True), log_k.amax()))
    similarity: Tensor = (log_q - largest_q).exp() @ (log_k - largest_k).exp().T
    return similarity


def _features(twin: ModuleType, x: Tensor, feature_map: nn.Module) -> Tensor:
    if hasattr(twin, "log_features"):
        log_features: Tensor = twin.log_features(x, feature_map)
        return log_features.exp()
    features: Tensor = twin.features(x, feature_map)
    return features


def _twin(feature_map: nn.Module) -> ModuleType:
    name = type(feature_map).__module__.rpartition(".")[2]
    return importlib.import_module(f"reattend.attention.naive.feature_maps.{name}")
