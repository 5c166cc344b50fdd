"""Mean cross-entropy as a metric."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric


class MeanCrossEntropy(Metric):
    """Mean over all samples of -log softmax(logits)[y], in nats."""

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Adds samples: `logits` (B, C), `y` (B,)."""
        self.total += F.cross_entropy(logits, y, reduction="sum").double()
        self.count += len(y)

    def compute(self) -> Tensor:
        """The mean so far."""
        return (self.total / self.count).float()
