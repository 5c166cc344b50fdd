"""Classification of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from reattend.tasks.classification import Classification

_TOP = 5


class ImageClassification(Classification):
    """`Classification` that also reports `top5`, the fraction whose class is among the five likeliest.

    With five classes or fewer that is 1.
    """

    higher_is_better: ClassVar[Mapping[str, bool]] = {**Classification.higher_is_better, "top5": True}

    def make_metrics(self) -> MetricCollection:
        """Accuracy, top-5 accuracy and mean cross-entropy."""
        metrics = super().make_metrics()
        top = min(_TOP, self.num_outputs)
        metrics.add_metrics(
            {"top5": MulticlassAccuracy(self.num_outputs, average="micro", top_k=top, validate_args=False)}
        )
        return metrics
