"""Top-k attention of one head of one sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.kernels.top_k import TopKKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: TopKKernel, tokens: Tokens) -> Tensor:
    """Softmax attention of each query q_i (D,) to the keys whose logit is not below the k-th largest of q_i's.

    Zhao et al. 2019, Eqn 2-5.
    """
    rows = []
    for q_i in q:
        logits = k @ q_i / math.sqrt(len(q_i))
        threshold = sorted(logits.tolist(), reverse=True)[: kernel.k][-1]
        kept = logits >= threshold
        rows.append((logits[kept] - logits[kept].logsumexp(0)).exp() @ v[kept])
    return torch.stack(rows)
