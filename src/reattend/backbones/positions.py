"""Positions as sines and cosines."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def sinusoids(length: int, dim: int) -> Tensor:
    """Positions (N, D): sin(n / 10000^(2 i / D)) at feature 2 i, the cosine of it at 2 i + 1 (Vaswani et al. 2017)."""
    angles = torch.arange(length)[:, None] * torch.exp(-math.log(10_000.0) * torch.arange(0, dim, 2) / dim)
    table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return table[:, :dim]


def fairseq_sinusoids(length: int, dim: int) -> Tensor:
    """Positions (N, D) as fairseq has them: with f_i = 10000^(-i / (D/2 - 1)), sin((n + 2) f_i) at feature i.

    The cosine of it stands at D/2 + i. Fairseq counts from the id of its padding token, 1, and begins behind it.
    """
    half = dim // 2
    rates = torch.exp(-math.log(10_000.0) * torch.arange(half) / (half - 1))
    angles = torch.arange(2, length + 2)[:, None] * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, dim % 2))
