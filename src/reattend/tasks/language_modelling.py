"""Prediction of the next token: bytes, pixels, words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, MetricCollection

from reattend.data.language.blocks import IGNORED
from reattend.tasks.supervised import SupervisedTask
from reattend.tasks.token_cross_entropy import TokenCrossEntropy, Unit, in_unit


class LanguageModelling(SupervisedTask):
    """Each token from those before it, by cross-entropy; reports `loss` (nats) and what a subclass adds.

    The model's outputs are logits (B, N, num_outputs). Training reports the same of an epoch's batches as they were
    trained on, with dropout and augmentation: the mean over sequences, without losses of the mixers.
    """

    kind = "language_modelling"
    causal = True
    higher_is_better: ClassVar[Mapping[str, bool]] = {"loss": False}
    units: ClassVar[Mapping[str, Unit]] = {"loss": "nats"}

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.train_nats = MeanMetric()
        self.train_nats.persistent(True)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of each sequence over its tokens with a target, (B,)."""
        # In the layout that it has: transposed logits of 267,744 words would be copied.
        flat = F.cross_entropy(outputs.flatten(0, 1), y.flatten(), ignore_index=IGNORED, reduction="none")
        return flat.view_as(y).sum(1) / (y != IGNORED).sum(1).clamp(min=1)

    @classmethod
    def train_metrics(cls) -> tuple[str, ...]:
        """All of them."""
        return tuple(cls.units)

    def watch(self, losses: Tensor, weight: Tensor) -> None:
        """Adds sequences to the mean of the epoch."""
        self.train_nats.update(losses, weight)

    def take_train_metrics(self) -> dict[str, float]:
        """Means over training since this was called last, in the units of the task."""
        nats = self.train_nats.compute()
        self.train_nats.reset()
        own = {name: float(in_unit(nats, self.units[name])) for name in self.units if name != "loss"}
        return super().take_train_metrics() | own

    def make_metrics(self) -> MetricCollection:
        """Means over tokens, in the units of the task."""
        metrics: dict[str, Any] = {name: TokenCrossEntropy(unit) for name, unit in self.units.items()}
        # One sum of all of them: it is what evaluation takes longest for where there are many words.
        return MetricCollection(metrics, compute_groups=[list(metrics)])


class ByteModelling(LanguageModelling):
    """Text byte by byte; reports `bits_per_char`."""

    higher_is_better: ClassVar[Mapping[str, bool]] = {"loss": False, "bits_per_char": False}
    units: ClassVar[Mapping[str, Unit]] = {"loss": "nats", "bits_per_char": "bits"}


class PixelModelling(LanguageModelling):
    """Images sub-pixel by sub-pixel; reports `bits_per_dim`, whose uniform guess of 256 levels is 8."""

    higher_is_better: ClassVar[Mapping[str, bool]] = {"loss": False, "bits_per_dim": False}
    units: ClassVar[Mapping[str, Unit]] = {"loss": "nats", "bits_per_dim": "bits"}


class WordModelling(LanguageModelling):
    """Text word by word; reports `perplexity`."""

    higher_is_better: ClassVar[Mapping[str, bool]] = {"loss": False, "perplexity": False}
    units: ClassVar[Mapping[str, Unit]] = {"loss": "nats", "perplexity": "perplexity"}
