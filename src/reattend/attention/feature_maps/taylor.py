"""The feature map of softmax attention's first-order Taylor expansion."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.slots import FeatureMap


class Taylor(FeatureMap):
    """phi(x) = [1; x / |x|], so that phi(q) . phi(k) = 1 + cos(q, k) in [0, 2].

    Su (2020): exp(q . k) to first order, with the lengths taken off to make it positive; also Li et al. 2020 (arXiv
    2007.14902). No epsilon is added to |x|. A zero vector has no direction: it is mapped to [1; 0], with zero gradient,
    and so is one whose length is near the smallest float. Where q = -k for all keys k the weights are zero, and the
    output is zero; near there it is not continuous.
    """

    def num_features(self, head_dim: int) -> int:
        return 1 + head_dim

    def forward(self, x: Tensor) -> Tensor:
        limits = torch.finfo(x.dtype)
        # Relative to its largest entry no square over- or underflows; a common factor changes no direction.
        largest = x.detach().abs().amax(-1, keepdim=True)
        zero = largest <= limits.tiny / limits.eps
        x = x / largest.masked_fill(zero, 1.0)
        length = x.square().sum(-1, keepdim=True).masked_fill(zero, 1.0).sqrt()
        return torch.cat([torch.ones_like(length), (x / length).masked_fill(zero, 0.0)], -1)
