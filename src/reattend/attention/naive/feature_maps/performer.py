"""The logarithm of the Performer's random features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.feature_maps.performer import Performer


def log_features(x: Tensor, feature_map: Performer) -> Tensor:
    """log phi_j(x) = w_j . x' - |x'|^2 / 2 - log(m) / 2 for x (N, D), with x' = x D^(-1/4); or log of relu(w_j . x').

    Choromanski et al. 2020, Lemma 1; the second too is over m^(1/2).
    """
    w = feature_map.matrix.double()
    x = x / x.shape[1] ** 0.25
    projected = torch.stack([torch.stack([w_j @ x_i for w_j in w]) for x_i in x])
    if feature_map.kind == "relu":
        positive = projected > 0
        return torch.where(positive, torch.where(positive, projected, 1.0).log(), -math.inf) - math.log(len(w)) / 2
    return projected - (x**2).sum(1, keepdim=True) / 2 - math.log(len(w)) / 2
