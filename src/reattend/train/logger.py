"""Where metrics go while a run trains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from reattend.config.schema import LoggerConfig
from reattend.runs.metrics import MetricsFile


class CSVMetrics(Logger):
    """Appends every metric to the run's `metrics.csv`."""

    def __init__(self, file: MetricsFile) -> None:
        super().__init__()
        self.file = file

    @property
    def name(self) -> str:
        """Of the logger."""
        return "csv"

    @property
    def version(self) -> str:
        """A run has one metrics file."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The run's config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Appends `metrics`, the epoch among them, after `step` updates."""
        values = dict(metrics)
        epoch = int(values.pop("epoch"))
        self.file.append(epoch, step or 0, values)


def make_loggers(config: LoggerConfig, folder: Path, metrics: MetricsFile) -> list[Logger]:
    """`metrics.csv` always, and the logger that was asked for beside it."""
    loggers: list[Logger] = [CSVMetrics(metrics)]
    if config.name == "tensorboard":
        loggers.append(TensorBoardLogger(save_dir=folder, name="tensorboard", version=""))
    elif config.name == "wandb":
        offline = os.environ.get("WANDB_MODE", "offline") != "online"
        loggers.append(WandbLogger(project=config.project, name=folder.name, save_dir=folder, offline=offline))
    return loggers


def logger_hint(config: LoggerConfig, folder: Path) -> str | None:
    """How to look at what the logger wrote."""
    if config.name == "tensorboard":
        return f"tensorboard --logdir {folder}"
    if config.name == "wandb" and os.environ.get("WANDB_MODE", "offline") != "online":
        return f"wandb sync {folder}/wandb/offline-run-*"
    return None
