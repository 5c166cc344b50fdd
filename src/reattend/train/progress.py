"""How far a run has come: a bar over the whole run on a terminal, a line for each evaluation elsewhere."""

from __future__ import annotations

import sys
from typing import Any

import pytorch_lightning as pl
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from reattend.train.callbacks import KeepState


def make_progress(keep: KeepState) -> pl.Callback:
    """What suits standard output."""
    return BarProgress(keep) if sys.stdout.isatty() else PlainProgress(keep)


class BarProgress(pl.Callback):
    """A bar over all micro-batches of the run, with epoch, metric and time left; only in the first process."""

    def __init__(self, keep: KeepState) -> None:
        self.keep = keep
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def on_train_start(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Shows the bar, at where an interrupted run goes on."""
        if trainer.is_global_zero:
            columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns)
            batches = trainer.num_training_batches
            total = int((trainer.max_epochs or 0) * batches)
            done = int(trainer.current_epoch * batches) + self.keep.position
            self.task = self.bar.add_task(self._text(trainer), total=total, completed=done)
            self.bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, task: pl.LightningModule, *args: Any) -> None:
        """Moves the bar."""
        if self.bar is not None:
            self.bar.advance(self.task)

    def on_validation_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Says what was measured."""
        if self.bar is not None:
            self.bar.update(self.task, description=self._text(trainer))

    def on_train_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Leaves the bar as it is."""
        if self.bar is not None:
            self.bar.stop()

    def on_exception(self, trainer: pl.Trainer, task: pl.LightningModule, exception: BaseException) -> None:
        """Gives the terminal back."""
        if self.bar is not None:
            self.bar.stop()

    def _text(self, trainer: pl.Trainer) -> str:
        return _text(trainer, self.keep, trainer.current_epoch + bool(self.keep.best))


class PlainProgress(pl.Callback):
    """One line for each evaluation, for logs and pipes."""

    def __init__(self, keep: KeepState) -> None:
        self.keep = keep

    def on_validation_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        """Prints epoch, metric, best so far and time."""
        if trainer.is_global_zero:
            text = _text(trainer, self.keep, trainer.current_epoch + 1)
            print(f"{text}  {self.keep.elapsed:.0f} s", flush=True)


def _text(trainer: pl.Trainer, keep: KeepState, epoch: int) -> str:
    text = f"epoch {epoch}/{trainer.max_epochs}"
    if keep.best:
        value = float(trainer.callback_metrics.get(keep.metric, keep.best["value"]))
        text += f"  {keep.metric} {value:.4f}  best {keep.best['value']:.4f} (epoch {keep.best['epoch']})"
    return text
