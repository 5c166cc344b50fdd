"""Attention of one head of one sample to the memory block of each query's block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.kernels.image_transformer import ImageTransformerKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: ImageTransformerKernel, tokens: Tokens) -> Tensor:
    """sum_{j in M(i)} softmax_j(q_i . k_j / sqrt(D)) v_j for q (N, D), k and v (M, D); zero where M(i) is empty.

    Parmar et al. 2018, section 4.3. Causal it is called on a prefix, whose last query counts alone.
    """
    rows = []
    for i in range(q.shape[0]):
        seen = [number for number, (j,) in enumerate(tokens.keys) if _sees(i, j, kernel)]
        logits = k[seen] @ q[i] / math.sqrt(q.shape[1])
        rows.append((logits - logits.logsumexp(0)).exp() @ v[seen] if seen else torch.zeros_like(q[i]))
    return torch.stack(rows)


def _sees(i: int, j: int, kernel: ImageTransformerKernel) -> bool:
    """Whether token j is in the memory block of token i's query block."""
    i, j = i - kernel.prefix, j - kernel.prefix
    if i < 0 or j < 0:
        return True
    block = i // kernel.window
    first, last = block * kernel.window - kernel.memory, (block + 1) * kernel.window - 1
    return first <= j <= last + (0 if kernel.causal else kernel.memory)
