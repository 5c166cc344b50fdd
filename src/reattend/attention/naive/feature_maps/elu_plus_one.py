"""The logarithm of elu(x) + 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def log_features(x: Tensor, feature_map: nn.Module) -> Tensor:
    """log(elu(x) + 1), elementwise: log(x + 1) for x >= 0, x below."""
    return torch.where(x >= 0, torch.log1p(x.clamp(min=0)), x)
