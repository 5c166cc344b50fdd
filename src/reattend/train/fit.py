"""Training and final evaluation with Lightning."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy
from torch import Tensor

from reattend.config.schema import RunConfig
from reattend.data.sampled import SampledData
from reattend.runs.checkpoints import check_checkpoint
from reattend.runs.lease import Lease
from reattend.runs.metrics import FILE, MetricsFile, read_metrics
from reattend.runs.result import Selected
from reattend.tasks.supervised import EMA, SupervisedTask
from reattend.train.callbacks import HoldLease, KeepState, WriteMetrics, model_weights
from reattend.train.devices import accelerator
from reattend.train.logger import make_loggers
from reattend.train.progress import make_progress


@dataclass(frozen=True)
class Trained:
    """What training leaves: metrics under each selection rule, weights, seconds of training."""

    metrics: dict[str, Selected]
    weights: dict[str, dict[str, Tensor]]
    seconds: float


def fit(
    config: RunConfig,
    task: SupervisedTask,
    data: SampledData,
    folder: Path,
    fingerprint: str,
    lease: Lease | None,
    more_callbacks: Sequence[pl.Callback] = (),
) -> Trained:
    """Trains `task` to its last epoch, from the folder's checkpoint if there is one, and evaluates it on test.

    Args:
        config: of the run.
        task: with the model to be trained.
        data: its data.
        folder: of the run.
        fingerprint: of the run.
        lease: on the folder; None in the further processes of a run on several devices.
        more_callbacks: called after the run's own.
    """
    _quieten_lightning()
    metric = f"{task.split}/{config.task.metric}"
    keep = KeepState(
        folder, fingerprint, metric, task.higher_is_better[config.task.metric], config.trainer.checkpoint_seconds
    )
    metrics_file = MetricsFile(folder / FILE)
    checkpoint = keep.path if keep.path.exists() else None
    if lease is not None:
        reached = check_checkpoint(checkpoint, fingerprint)["global_step"] if checkpoint else -1
        metrics_file.cut_back(reached)
    trainer = pl.Trainer(
        accelerator=accelerator(config.trainer),
        devices=config.trainer.devices,
        strategy=_strategy(config),
        precision=config.trainer.precision,
        accumulate_grad_batches=config.trainer.accumulation,
        max_epochs=config.recipe.epochs,
        check_val_every_n_epoch=config.recipe.eval_every_epochs,
        num_sanity_val_steps=0,
        deterministic=config.trainer.deterministic,
        # Only a value makes Lightning call the task's clipping, which also watches for gradients that are not finite.
        gradient_clip_val=config.recipe.clip_norm or float("inf"),
        logger=make_loggers(config.logger, folder, metrics_file),
        callbacks=[*_callbacks(keep, lease), *more_callbacks],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        log_every_n_steps=1,
    )
    trainer.fit(task, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    seconds = keep.elapsed
    weights = {"last": model_weights(trainer), "best": keep.best_weights}
    last = config.recipe.epochs
    trained = _training(metrics_file)
    tested = _test(trainer, task, data)
    metrics = {"last": Selected(last, trainer.global_step, trained.get(last, {}) | tested)}
    if keep.best["epoch"] != last:
        task.model.load_state_dict(keep.best_weights)
        tested = _test(trainer, task, data)
    # The average of the weights is that of the last epoch.
    own = {name: value for name, value in tested.items() if not name.endswith(EMA)}
    found = trained.get(keep.best["epoch"], {}) | own | {metric: keep.best["value"]}
    best = Selected(keep.best["epoch"], keep.best["step"], found)
    metrics["best_on_validation" if task.split == "val" else "best_on_test"] = best
    return Trained(metrics, weights, seconds)


def _training(metrics_file: MetricsFile) -> dict[int, dict[str, float]]:
    """Metrics of training, such as "train/loss", by epoch; of processes that write no file, none."""
    found: dict[int, dict[str, float]] = {}
    rows = read_metrics(metrics_file.path) if metrics_file.path.exists() else []
    for row in rows:
        if row.metric.startswith("train/"):
            found.setdefault(row.epoch, {})[row.metric] = row.value
    return found


def _test(trainer: pl.Trainer, task: SupervisedTask, data: SampledData) -> dict[str, float]:
    """Metrics on test, and on its further forms by their names: "test/accuracy", "test_384/accuracy"."""
    tested: dict[str, float] = {}
    further = {form: data.eval_loader(samples) for form, samples in data.further_tests().items()}
    for form, loader in {"test": data.test_dataloader(), **further}.items():
        trainer.test(task, dataloaders=loader, verbose=False)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("test/")}
        tested |= {f"{form}/{name.removeprefix('test/')}": value for name, value in metrics.items()}
    return tested


def _callbacks(keep: KeepState, lease: Lease | None) -> list[pl.Callback]:
    callbacks: list[pl.Callback] = [WriteMetrics(), keep, make_progress(keep)]
    if lease is not None:
        callbacks.append(HoldLease(lease))
    return callbacks


def _strategy(config: RunConfig) -> Any:
    if config.trainer.strategy == "fsdp":
        return FSDPStrategy(state_dict_type="full")
    if config.trainer.devices > 1:
        return DDPStrategy(process_group_backend="nccl" if torch.cuda.is_available() else "gloo")
    return "auto"


def _quieten_lightning() -> None:
    for name in ("pytorch_lightning", "lightning.fabric", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Data lies in memory: more worker processes would only copy it.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
    # The sampler resumes; Lightning looks for that in the loader.
    warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
    # Those of the averaged weights.
    warnings.filterwarnings("ignore", message=r".*module\(s\) in eval mode.*")
    # Of Lightning and torch among themselves.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")
