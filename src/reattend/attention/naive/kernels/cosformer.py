"""cosFormer of one head of one sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.kernels.cosformer import CosformerKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: CosformerKernel, tokens: Tokens) -> Tensor:
    """sum_j s_ij v_j / sum_j s_ij, s_ij = relu(q_i) . relu(k_j) cos(pi/2 (i - j) / M), for q (N, D), k and v (M, D).

    Qin et al. 2022. Positions count real tokens; M is their number, causal the largest length.
    """
    query_at = torch.tensor([max(sum(tokens.queries[: i + 1]) - 1, 0) for i in range(len(q))], dtype=torch.float64)
    key_at = torch.arange(len(k), dtype=torch.float64)
    length = kernel.max_length if kernel.causal else max(sum(tokens.queries), len(k))
    distance = query_at[:, None] - key_at[None, :]
    similarity = (q.relu() @ k.relu().T) * torch.cos(math.pi / 2 * distance / length)
    total = similarity.sum(1, keepdim=True)
    return torch.where(total == 0, 0.0, similarity / torch.where(total == 0, 1.0, total)) @ v
