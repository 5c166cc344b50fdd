"""The feature map elu(x) + 1."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.slots import FeatureMap


class EluPlusOne(FeatureMap):
    """phi(x) = elu(x) + 1: x + 1 for x >= 0, exp(x) below (Katharopoulos et al. 2020).

    Written without the detour over elu(x) = exp(x) - 1, which rounds to -1 and makes phi zero for x below about -6 in
    bfloat16 and -17 in float32.
    """

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def forward(self, x: Tensor) -> Tensor:
        # exp sees no positive x: it would overflow, and its infinite gradient would be multiplied by zero.
        return torch.where(x >= 0, x + 1, x.clamp(max=0).exp())

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        # With all features negative phi(x) exp(-max x) = exp(x - max x); otherwise the largest feature is at least 1.
        largest = x.detach().amax(-1, keepdim=True).clamp(max=0)
        return torch.where(x >= 0, x + 1, (x.clamp(max=0) - largest).exp()), largest
