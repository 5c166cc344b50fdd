"""Mean errors of predictions as metrics."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class MeanError(Metric):
    """Mean over all samples of |prediction - y|^power, or its power-th root, summed in float64.

    Args:
        power: 1 or 2.
        root: whether the root is taken, after the mean.
    """

    total: Tensor
    count: Tensor

    def __init__(self, power: int, root: bool = False) -> None:
        super().__init__()
        self.power = power
        self.root = root
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, y: Tensor) -> None:
        """Adds samples: `predictions` (B, 1), `y` (B,)."""
        self.total += (predictions.double().squeeze(1) - y.double()).abs().pow(self.power).sum()
        self.count += len(y)

    def compute(self) -> Tensor:
        """The mean so far."""
        mean = self.total / self.count
        return (mean.pow(1 / self.power) if self.root else mean).float()
