"""The feature map that leaves queries or keys as they are."""

from __future__ import annotations

from torch import Tensor

from reattend.attention.slots import FeatureMap


class Identity(FeatureMap):
    """phi(x) = x: the similarity is q . k, of either sign.

    For attention without a normaliser, Q K^T V. Where normalised, weights of both signs may cancel in the normaliser.
    """

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def forward(self, x: Tensor) -> Tensor:
        return x
