"""What happens between the steps of a run: checkpoints, the best epoch, a line for each evaluation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from reattend.runs.checkpoints import replace_checkpoint
from reattend.runs.lease import Lease
from reattend.tasks.supervised import SupervisedTask

CHECKPOINT = "last.ckpt"


class KeepState(pl.Callback):
    """Checkpoints a run so that it can be taken up again at any step, with the best epoch's weights inside.

    The best epoch is the earliest with the best value of `metric` on the split that training watches.

    Args:
        folder: of the run.
        fingerprint: of the run, stamped on each checkpoint.
        metric: logged name, such as "test/accuracy".
        higher_is_better: its direction.
        seconds: least time between two checkpoints; the last epoch is always saved.
    """

    def __init__(self, folder: Path, fingerprint: str, metric: str, higher_is_better: bool, seconds: float) -> None:
        self.folder = folder
        self.fingerprint = fingerprint
        self.metric = metric
        self.sign = 1.0 if higher_is_better else -1.0
        self.seconds = seconds
        self.best: dict[str, Any] = {}
        self.best_weights: dict[str, Tensor] = {}
        self.position = 0
        self.seconds_before = 0.0
        self.started = self.saved = time.monotonic()

    @property
    def path(self) -> Path:
        """Where the checkpoint lies."""
        return self.folder / CHECKPOINT

    @property
    def elapsed(self) -> float:
        """Seconds of training, those before an interruption included up to the last checkpoint."""
        return self.seconds_before + time.monotonic() - self.started

    def on_train_start(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Lets an interrupted epoch go on behind the micro-batches that it has seen."""
        loader: Any = trainer.train_dataloader
        loader.sampler.start = self.position

    def on_validation_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Keeps the weights if they are the best so far."""
        value = float(trainer.callback_metrics[self.metric])
        if not self.best or self.sign * value > self.sign * self.best["value"]:
            # Epochs are counted from 1 for people; the epoch under way is complete when it is evaluated.
            self.best = {"value": value, "epoch": trainer.current_epoch + 1, "step": trainer.global_step}
            self.best_weights = model_weights(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, task: pl.LightningModule, *args: Any) -> None:
        """Saves in mid-epoch when it is time; the end of an epoch has its own hook."""
        if trainer.current_epoch + 1 == trainer.max_epochs:
            # The last epoch is evaluated whatever the interval: it is one that may be the best.
            trainer.check_val_every_n_epoch = 1
        progress = trainer.fit_loop.epoch_loop.batch_progress
        accumulating = progress.current.ready % trainer.accumulate_grad_batches
        if not progress.is_last_batch and not accumulating:
            self.position = progress.current.ready
            self._save_if_due(trainer, task)

    def on_train_epoch_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Saves when it is time, and always at the end of training."""
        self.position = 0
        if trainer.current_epoch + 1 == trainer.max_epochs:
            self._save(trainer, task)
        else:
            self._save_if_due(trainer, task)

    def state_dict(self) -> dict[str, Any]:
        """The best epoch so far, the position in the epoch and the time spent."""
        return {
            "best": self.best,
            "best_weights": self.best_weights,
            "position": self.position,
            "seconds": self.elapsed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up where a checkpoint left."""
        self.best, self.best_weights = state_dict["best"], state_dict["best_weights"]
        self.position = state_dict["position"]
        self.seconds_before, self.started = state_dict["seconds"], time.monotonic()

    def _save_if_due(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        # Lightning stops at the next boundary of steps after SIGTERM, which is here.
        due = trainer.strategy.broadcast(trainer.received_sigterm or time.monotonic() - self.saved >= self.seconds)
        if due:
            self._save(trainer, task)

    def _save(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        assert isinstance(task, SupervisedTask)
        # The checkpoint before stays the last good one.
        task.check_parameters()
        with replace_checkpoint(self.path, self.fingerprint) as partial:
            trainer.save_checkpoint(partial)
        self.saved = time.monotonic()


class WriteMetrics(pl.Callback):
    """Hands metrics to the loggers at the end of epochs and evaluations, stamped with epochs and updates so far.

    It stands before `KeepState`, so that what a checkpoint follows is written when the checkpoint is: after an
    interruption no row is missing and none is there twice.
    """

    def on_validation_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Metrics of the split that is watched."""
        assert isinstance(task, SupervisedTask)
        self._write(trainer, {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(task.split)})

    def on_train_epoch_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Training metrics of the epoch, and what the mixers measured."""
        assert isinstance(task, SupervisedTask)
        metrics = task.take_train_metrics() | task.take_measurements()
        self._write(trainer, {f"train/{name}": value for name, value in metrics.items()})

    def _write(self, trainer: pl.Trainer, metrics: dict[str, float]) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(metrics | {"epoch": trainer.current_epoch + 1}, step=trainer.global_step)


class HoldLease(pl.Callback):
    """Stops a run whose folder another process has taken over."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    def on_train_batch_end(self, *args: Any) -> None:
        """Raises if the lease is lost."""
        self.lease.check()


def model_weights(trainer: pl.Trainer) -> dict[str, Tensor]:
    """A copy on the CPU of the model's weights, without the task around it; whole on rank 0 under FSDP."""
    state = trainer.strategy.lightning_module_state_dict()
    return {
        name.removeprefix("model."): tensor.detach().to("cpu", copy=True)
        for name, tensor in state.items()
        if name.startswith("model.")
    }
