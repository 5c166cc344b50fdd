"""YOSO attention of one head of one sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.kernels.yoso import Yoso
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: Yoso, tokens: Tokens) -> Tensor:
    """u_i / |u_i| with u_i = sum_j w_ij v_j for q (N, D), k and v (M, D).

    w_ij = (1 - angle / pi)^b, or the share of the hashes in which all b signs are equal. Unless the gradient is exact,
    its derivative in the cosine is (b / 2) w_ij.
    """
    q, k = _unit(q), _unit(k)
    cosine, bits = q @ k.T, kernel.code_length
    if kernel.hyperplanes is None:
        weights = (1 - cosine.clamp(-1, 1).acos() / math.pi) ** bits
    else:
        weights = torch.zeros_like(cosine)
        for planes in kernel.hyperplanes[:, tokens.head].double():
            signs_q, signs_k = q @ planes > 0, k @ planes > 0
            weights = weights + (signs_q[:, None] == signs_k[None]).all(2) / len(kernel.hyperplanes)
    if not kernel.exact:
        weights = weights.detach() * (1 + bits / 2 * (cosine - cosine.detach()))
    return _unit(weights @ v)


def _unit(x: Tensor) -> Tensor:
    norm = x.norm(dim=1, keepdim=True)
    return torch.where(norm == 0, 0.0, x / torch.where(norm == 0, 1.0, norm))
