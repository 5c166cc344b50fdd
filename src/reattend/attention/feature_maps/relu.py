"""The feature map relu(x)."""

from __future__ import annotations

from torch import Tensor

from reattend.attention.slots import FeatureMap


class Relu(FeatureMap):
    """phi(x) = max(x, 0).

    One of the generalised kernels of Choromanski et al. (2020), without random features. A query without a positive
    feature in common with any key has a normaliser of exactly zero, and gets zero.
    """

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def forward(self, x: Tensor) -> Tensor:
        return x.relu()
