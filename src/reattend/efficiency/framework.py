"""What a run costs beside a bare PyTorch loop with the same model, data and optimiser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F

from reattend.config import RunConfig
from reattend.data.time_series import Samples
from reattend.errors import ReattendError
from reattend.train.execute import Plan, build_task
from reattend.train.fit import fit

Seconds = tuple[list[float], list[float]]


class Clock(pl.Callback):
    """Seconds of each epoch, from its start to the next without evaluation, and of each evaluation."""

    def __init__(self) -> None:
        self.epochs: list[float] = []
        self.evaluations: list[float] = []
        self.epoch_started = self.evaluation_started = self.inside = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Ends the epoch before, its bookkeeping included."""
        now = time.perf_counter()
        if trainer.current_epoch > 0:
            self.epochs.append(now - self.epoch_started - self.inside)
        self.epoch_started, self.inside = now, 0.0

    def on_validation_start(self, *args: Any) -> None:
        """Starts an evaluation."""
        self.evaluation_started = time.perf_counter()

    def on_validation_end(self, *args: Any) -> None:
        """Ends an evaluation."""
        self.inside = time.perf_counter() - self.evaluation_started
        self.evaluations.append(self.inside)


def framework_seconds(planned: Plan, folder: Path) -> Seconds:
    """Seconds of each epoch and each evaluation of a run as `train.py` makes it, without final tests and files."""
    clock = Clock()
    task = build_task(planned.config, planned.data.shape)
    folder.mkdir(parents=True, exist_ok=True)
    fit(planned.config, task, planned.data, folder, planned.fingerprint, None, more_callbacks=[clock])
    return clock.epochs, clock.evaluations


def bare_seconds(planned: Plan) -> Seconds:
    """The same for a loop that knows nothing but the model, tensors in memory and the optimiser."""
    config = planned.config
    task = build_task(config, planned.data.shape)
    model, optimizer = task.model, task.configure_optimizers()
    train, test = planned.data.train, planned.data.test
    if not isinstance(train, Samples) or not isinstance(test, Samples):
        raise ReattendError(f"framework measures runs on time series, {config.task.name} has none: task=uea/...")
    epochs, evaluations = [], []
    for epoch in range(config.recipe.epochs):
        start = time.perf_counter()
        _train_epoch(model, optimizer, train, config)
        epochs.append(time.perf_counter() - start)
        if (epoch + 1) % config.recipe.eval_every_epochs == 0:
            start = time.perf_counter()
            _accuracy(model, test, config.recipe.batch_size)
            evaluations.append(time.perf_counter() - start)
    return epochs, evaluations


def _train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, train: Samples, config: RunConfig) -> None:
    model.train()
    for indices in torch.randperm(len(train)).split(config.recipe.batch_size):
        outputs, _ = model(train.x[indices], None if train.padding_mask is None else train.padding_mask[indices])
        loss = F.cross_entropy(outputs, train.y[indices])
        optimizer.zero_grad()
        loss.backward()
        if config.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.recipe.clip_norm)
        optimizer.step()


@torch.no_grad()
def _accuracy(model: nn.Module, test: Samples, batch_size: int) -> float:
    model.eval()
    right = 0
    for indices in torch.arange(len(test)).split(batch_size):
        outputs, _ = model(test.x[indices], None if test.padding_mask is None else test.padding_mask[indices])
        right += int((outputs.argmax(1) == test.y[indices]).sum())
    return right / len(test)
