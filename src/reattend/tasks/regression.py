"""Regression of series, sequences or images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection

from reattend.config.schema import RecipeConfig
from reattend.tasks.mean_error import MeanError
from reattend.tasks.supervised import SupervisedTask


class Regression(SupervisedTask):
    """One number for each sample, by squared error; reports `rmse`, `mae` and `loss` (the mean squared error).

    Targets are as the files have them, in their own unit, as in gzerveas/mvts_transformer: neither centred nor scaled.

    Args:
        model: see `SupervisedTask`; its outputs are predictions (B, 1).
        num_outputs: 1.
        recipe: see `SupervisedTask`.
        seed: see `SupervisedTask`.
        split: see `SupervisedTask`.
        loss_weights: see `SupervisedTask`.
    """

    kind = "regression"
    higher_is_better: ClassVar[Mapping[str, bool]] = {"rmse": False, "mae": False, "loss": False}

    def __init__(
        self,
        model: nn.Module,
        *,
        num_outputs: int,
        recipe: RecipeConfig,
        seed: int,
        split: str,
        loss_weights: Mapping[str, float],
    ) -> None:
        if num_outputs != 1:
            raise ValueError(f"a regression has one output, not {num_outputs}")
        super().__init__(
            model, num_outputs=num_outputs, recipe=recipe, seed=seed, split=split, loss_weights=loss_weights
        )

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Squared error of each sample, (B,)."""
        return F.mse_loss(outputs.squeeze(1), y, reduction="none")

    def make_metrics(self) -> MetricCollection:
        """Root of the mean squared error, mean absolute error, mean squared error."""
        metrics: dict[str, Any] = {"rmse": MeanError(2, root=True), "mae": MeanError(1), "loss": MeanError(2)}
        return MetricCollection(metrics, compute_groups=False)
