"""Attention-BN on one head of one sample."""

from __future__ import annotations

import torch
from torch import Tensor


def recenter(q: Tensor, k: Tensor, beta: Tensor, std: bool, unit_roundoff: float) -> tuple[Tensor, Tensor]:
    """(q_i - beta mu) / sigma and (k_j - beta mu) / sigma for q (N, D) and k (M, D).

    Eqn 26 of the primal-dual paper, with `std` Eqn 22 and 23. A feature that is constant over the keys becomes zero;
    constant is sigma^2 <= (4 u)^2 mean(k^2) with `unit_roundoff` u.
    """
    mu = k.mean(0)
    q, k, spread = q - beta * mu, k - beta * mu, ((k - mu) ** 2).mean(0)
    if not std:
        return q, k
    constant = spread <= (4 * unit_roundoff) ** 2 * (spread + mu**2)
    sigma = torch.where(constant, 1.0, spread).sqrt()
    return torch.where(constant, 0.0, q / sigma), torch.where(constant, 0.0, k / sigma)
