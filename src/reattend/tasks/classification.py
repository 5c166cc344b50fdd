"""Classification of series, sequences or images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from reattend.tasks.cross_entropy import MeanCrossEntropy
from reattend.tasks.supervised import SupervisedTask


class Classification(SupervisedTask):
    """One class for each sample, by cross-entropy; reports `accuracy` (fraction right) and `loss` (nats).

    The model's outputs are logits (B, num_outputs).
    """

    kind = "classification"
    higher_is_better: ClassVar[Mapping[str, bool]] = {"accuracy": True, "loss": False}

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of each sample, (B,), from classes `y` (B,) or probabilities (B, num_outputs)."""
        return F.cross_entropy(outputs, y, reduction="none")

    def make_metrics(self) -> MetricCollection:
        """Accuracy and mean cross-entropy."""
        metrics: dict[str, Any] = {
            "accuracy": MulticlassAccuracy(self.num_outputs, average="micro", validate_args=False),
            "loss": MeanCrossEntropy(),
        }
        return MetricCollection(metrics, compute_groups=False)
