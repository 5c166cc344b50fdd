"""The feature map elu(x) + 1."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from reattend.attention.slots import FeatureMap


class EluPlusOne(FeatureMap):
    """phi(x) = elu(x) + 1: x + 1 for x >= 0, exp(x) below (Katharopoulos et al. 2020).

    Written without the detour over elu(x) = exp(x) - 1, which rounds to -1 and makes phi zero for x below about -6 in
    bfloat16 and -17 in float32. A key whose features all underflow, from about -87 in float32, has no weight.
    """

    scales_keys: ClassVar[bool] = False

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = _EluPlusOne.apply(x)
        return features

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        # With all features negative phi(x) exp(-max x) = phi(x - max x); otherwise the largest feature is at least 1.
        largest = x.detach().amax(-1, keepdim=True).clamp(max=0)
        return self(x - largest), largest


class _EluPlusOne(torch.autograd.Function):
    """exp(min(x, 0)) + max(x, 0), whose slope min(phi(x), 1) needs nothing but phi(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # exp sees no positive x, which it may overflow for.
        features = x.clamp(max=0).exp_().add_(x.clamp(min=0))
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        slope: Tensor = features.clamp(max=1)
        return slope * grad
