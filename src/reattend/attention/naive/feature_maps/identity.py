"""No feature map."""

from __future__ import annotations

from torch import Tensor, nn


def features(x: Tensor, feature_map: nn.Module) -> Tensor:
    """x itself."""
    return x
