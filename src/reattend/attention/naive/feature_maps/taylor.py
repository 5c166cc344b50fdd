"""One, and the direction."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def features(x: Tensor, feature_map: nn.Module) -> Tensor:
    """[1; x / |x|] for each row of x (N, D), [1; 0] for a row of zeros."""
    rows = []
    for row in x:
        direction = row / (row * row).sum().sqrt() if row.any() else row * 0.0
        rows.append(torch.cat([torch.ones(1, dtype=x.dtype), direction]))
    return torch.stack(rows)
