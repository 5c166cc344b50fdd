"""Mean cross-entropy over tokens as a metric, in bits or as perplexity."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

from reattend.data.language.blocks import IGNORED

Unit = Literal["nats", "bits", "perplexity"]


class TokenCrossEntropy(Metric):
    """Mean over all tokens with a target of -log softmax(logits)[y].

    Args:
        unit: nats; bits, that is nats / ln 2; or perplexity, exp(nats).
    """

    total: Tensor
    count: Tensor

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.unit = unit
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Adds sequences: `logits` (B, N, V), `y` (B, N) with `IGNORED` where nothing is evaluated."""
        self.total += F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORED, reduction="sum").double()
        self.count += (y != IGNORED).sum()

    def compute(self) -> Tensor:
        """The mean so far."""
        return in_unit(self.total / self.count, self.unit).float()


def in_unit(nats: Tensor, unit: Unit) -> Tensor:
    """A mean cross-entropy in nats, in its unit."""
    if unit == "nats":
        return nats
    return nats / math.log(2) if unit == "bits" else nats.exp()
