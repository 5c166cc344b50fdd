"""Normalisation of token features."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of each feature over the batch and the tokens.

    Computes (x - E[x]) / sqrt(Var[x] + eps) * weight + bias over all B*N tokens (`over="all"`, padding included), or
    over the real ones alone (`over="real"`, padded tokens become zero). In evaluation the running statistics are used.
    Under several processes each has its own statistics.
    """

    def __init__(self, dim: int, over: Literal["all", "real"]) -> None:
        super().__init__(dim)
        self.over = over

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Normalises `x` (B, N, D); `padding_mask` (B, N) is True at real tokens."""
        if self.over == "all" or padding_mask is None:
            return super().forward(x.flatten(0, 1)).view_as(x)
        normalised = super().forward(x[padding_mask])
        return torch.zeros_like(x, dtype=normalised.dtype).masked_scatter(padding_mask.unsqueeze(-1), normalised)


class TokenLayerNorm(nn.LayerNorm):
    """Layer normalisation with the signature of `TokenBatchNorm`."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Normalises `x` (B, N, D) over D."""
        return super().forward(x)
