"""Prediction of the next token: bytes, pixels, words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MetricCollection

from reattend.attention.contract import Losses
from reattend.data.language.blocks import IGNORED
from reattend.tasks.supervised import SupervisedTask
from reattend.tasks.token_cross_entropy import TokenCrossEntropy, Unit, in_unit

_NATS = "cross_entropy"


class LanguageModelling(SupervisedTask):
    """Each token from those before it, by cross-entropy; reports `loss` (nats) and what a subclass adds.

    The model's outputs are logits (B, N, num_outputs). What is reported of training is the mean over its sequences,
    without the mixers' own losses but for `loss`.
    """

    kind = "language_modelling"
    higher_is_better: ClassVar[Mapping[str, bool]] = {"loss": False}
    units: ClassVar[Mapping[str, Unit]] = {"loss": "nats"}

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of each sequence over its tokens with a target, (B,)."""
        nats = F.cross_entropy(outputs.mT, y, ignore_index=IGNORED, reduction="none")
        return nats.sum(1) / (y != IGNORED).sum(1).clamp(min=1)

    @classmethod
    def training_metrics(cls) -> tuple[str, ...]:
        """All of them."""
        return tuple(cls.units)

    def training_measurements(self, losses: Tensor) -> Losses:
        """The cross-entropy of each sequence."""
        return {_NATS: losses}

    def take_measurements(self) -> dict[str, float]:
        """As of every task, and the cross-entropy in the units of this one."""
        measured = super().take_measurements()
        nats = torch.tensor(measured.pop(_NATS), dtype=torch.float64)
        return measured | {name: float(in_unit(nats, unit)) for name, unit in self.units.items() if name != "loss"}

    def make_metrics(self) -> MetricCollection:
        """Means over tokens, in the units of the task."""
        metrics: dict[str, Any] = {name: TokenCrossEntropy(unit) for name, unit in self.units.items()}
        return MetricCollection(metrics, compute_groups=False)


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
