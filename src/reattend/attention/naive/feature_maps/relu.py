"""The positive part."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def features(x: Tensor, feature_map: nn.Module) -> Tensor:
    """max(x, 0), elementwise."""
    return torch.where(x > 0, x, 0.0)
