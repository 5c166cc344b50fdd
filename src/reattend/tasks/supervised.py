"""What all supervised tasks share: losses over a global batch, reproducible dropout, optimiser, finite numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torchmetrics import MeanMetric, MetricCollection

from reattend.attention.contract import SQUARED_MEAN, Losses, StartsSteps
from reattend.config.schema import RecipeConfig
from reattend.errors import ReattendError, nearest
from reattend.seeding import derive
from reattend.tasks.finite import NonFiniteError, first_nonfinite_gradient, first_nonfinite_module
from reattend.tasks.measurements import Measurements, split_measurements
from reattend.tasks.optimizers import make_optimizer, make_schedule

Batch = dict[str, Any]

EMA = "_ema"  # ends the names of metrics of the averaged weights


class SupervisedTask(pl.LightningModule, ABC):
    """Trains a model on batches of `x`, `padding_mask`, `y`, `weight` and `global_size`.

    The loss of a global batch of n samples is (1/n) sum_i loss_i, whatever number of devices and accumulated
    micro-batches it is spread over; rows of weight 0 are fillers and count nowhere. Own losses of the mixers are added
    with `loss_weights`; one that is squared after averaging over the global batch is averaged over all devices, and
    refuses accumulated micro-batches. What mixers measure is logged by epoch. Dropout draws from a stream of its own
    for each (seed, epoch, micro-batch, rank), so that an interrupted run continues with the same numbers.

    With `recipe.ema_decay` = d a second model has the average a <- d a + (1 - d) w of the weights w after each update,
    from the initial ones on, and the buffers as they are; each metric is there for it too, as "accuracy_ema".

    Attributes:
        kind: of the data that it learns from: "classification", "regression", ...
        causal: whether the model may see no token after those that it is trained to give.
        higher_is_better: direction of each metric.

    Args:
        model: called as `model(x, padding_mask)`, returns outputs and the mixers' losses.
        num_outputs: what the model gives for a sample, or for each of its tokens: classes, token ids, 1 for a number.
        recipe: optimiser, schedule and clipping.
        seed: of the run.
        split: "test" or "val": what the evaluation during training sees.
        loss_weights: factor of each mixer loss by name; 1 where it is not named.

    Raises:
        NonFiniteError: in training, at the first loss or gradient that is not finite.
    """

    kind: ClassVar[str]
    causal: ClassVar[bool] = False
    higher_is_better: ClassVar[Mapping[str, bool]]

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
        super().__init__()
        self.model = model
        self.num_outputs = num_outputs
        self.recipe = recipe
        self.seed = seed
        self.split = split
        self.loss_weights = loss_weights
        self.train_loss = MeanMetric()
        # Part of a checkpoint, so that an epoch that was interrupted reports the loss of all its batches.
        self.train_loss.persistent(True)
        self.measurements = Measurements()
        self.ema: Any = None if recipe.ema_decay is None else _moving_average(model, recipe.ema_decay)
        suffixes = ("",) if self.ema is None else ("", EMA)
        self.evaluations = nn.ModuleDict(
            {split + suffix: self.make_metrics() for split in ("val", "test") for suffix in suffixes}
        )
        self._starting_steps = [module for module in model.modules() if isinstance(module, StartsSteps)]

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample, (B,)."""

    @abstractmethod
    def make_metrics(self) -> MetricCollection:
        """Metrics of one split, updated with outputs and targets."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of one micro-batch, scaled so that the optimiser sees the mean over the global batch."""
        for module in self._starting_steps:
            module.start_step(self.global_step)
        torch.manual_seed(derive(self.seed, "dropout", self.current_epoch, batch_idx, self.global_rank))
        loss = self._micro_batch_loss(batch)
        value = loss.detach()
        if not torch.isfinite(value):
            torch.manual_seed(derive(self.seed, "dropout", self.current_epoch, batch_idx, self.global_rank))
            # The model alone: its losses may wait for other processes, which have no such trouble.
            culprit = first_nonfinite_module(self.model, lambda: self.model(batch["x"], batch["padding_mask"]))
            raise NonFiniteError("the loss", float(value), self.current_epoch + 1, self.global_step, culprit)
        weight = batch["weight"].sum()
        mean = value * (batch["global_size"] / self._parts) / weight.clamp(min=1)
        self.train_loss.update(mean, weight)
        return loss

    @property
    def _parts(self) -> int:
        """Micro-batches of a global batch, over all processes."""
        return int(self.trainer.world_size * self.trainer.accumulate_grad_batches)

    def _micro_batch_loss(self, batch: Batch) -> Tensor:
        outputs, mixer_losses = self.model(batch["x"], batch["padding_mask"])
        per_sample = self.losses(outputs.float(), batch["y"])
        self.watch(per_sample.detach(), batch["weight"])
        own, measured = split_measurements(mixer_losses)
        self._check_weights(own)
        self.measurements.add(measured, batch["weight"])
        for name, mixer_loss in own.items():
            values = mixer_loss.float()
            if name.endswith(SQUARED_MEAN):
                values = self._squared_mean(values, batch["weight"] / batch["global_size"])
            per_sample = per_sample + self.loss_weights.get(name.removesuffix(SQUARED_MEAN), 1.0) * values
        loss: Tensor = (per_sample * batch["weight"]).sum() * (self._parts / batch["global_size"])
        return loss

    def _check_weights(self, losses: Losses) -> None:
        known = [name.removesuffix(SQUARED_MEAN) for name in losses]
        for name in self.loss_weights:
            if name not in known:
                returned = f"They return: {', '.join(known)}" if known else "They return none"
                raise ReattendError(
                    f"attention.loss_weights.{name}: no layer's mixer returns a loss of that name."
                    f"{nearest(name, known)} {returned}."
                )

    def _squared_mean(self, values: Tensor, weights: Tensor) -> Tensor:
        """Per-sample terms whose weighted sum over the global batch is sum_l (sum_i w_i J_il)^2, value and gradient.

        They are M_l^2 + 2 M_l (J_il - J_il') with the mean M_l over all processes and J' a constant to autograd.

        Args:
            values: J, (B, L).
            weights: w, (B,); they sum to 1 over the global batch.
        """
        if self.trainer.accumulate_grad_batches > 1:
            raise ReattendError("a loss of the whole batch's mean needs trainer.accumulation=1")
        constant = values.detach()
        mean: Any = self.trainer.strategy.reduce(weights @ constant, reduce_op="sum")
        terms: Tensor = mean.square() + 2 * mean * (values - constant)
        return terms.sum(1)

    def take_measurements(self) -> dict[str, float]:
        """Means of what the mixers measured since this was called last, over all processes; starts anew."""
        return self.measurements.take(lambda sums: self.trainer.strategy.reduce(sums, reduce_op="sum"))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the measurements of an epoch that is not over."""
        checkpoint["measurements"] = self.measurements.sums

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on with them."""
        self.measurements.sums = checkpoint.get("measurements", {})

    @classmethod
    def train_metrics(cls) -> tuple[str, ...]:
        """Names of what `take_train_metrics` gives."""
        return ("loss",)

    def watch(self, losses: Tensor, weight: Tensor) -> None:
        """Sees the losses of training samples (B,), without those of the mixers, for `take_train_metrics`."""

    def take_train_metrics(self) -> dict[str, float]:
        """Means over training since this was called last, over all processes, and starts anew: `loss`, of all terms."""
        value = float(self.train_loss.compute())
        self.train_loss.reset()
        return {"loss": value}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Scales the gradients to a norm of at most `recipe.clip_norm`."""
        limit = self.recipe.clip_norm if self.recipe.clip_norm is not None else float("inf")
        root = self.trainer.strategy.model
        if isinstance(root, FullyShardedDataParallel):
            norm = root.clip_grad_norm_(limit)  # over all shards, of which a process has one
        else:
            norm = nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], limit)
        # Under float16 the gradient scaler skips such a step and lowers its factor: that is no failure.
        if self.trainer.precision != "16-mixed" and not torch.isfinite(norm):
            culprit = first_nonfinite_gradient(self.model)
            raise NonFiniteError("the gradient norm", float(norm), self.current_epoch + 1, self.global_step, culprit)

    def check_parameters(self) -> None:
        """Raises `NonFiniteError` if an update has left a parameter that is not finite."""
        for name, parameter in self.model.named_parameters():
            if not torch.isfinite(parameter).all():
                culprit = f"the optimiser's update of {name}"
                raise NonFiniteError("a parameter", float("nan"), self.current_epoch + 1, self.global_step, culprit)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """An update of the weights, and of their average."""
        super().optimizer_step(*args, **kwargs)
        if self.ema is not None:
            self.ema.update(self.model)

    def on_validation_epoch_start(self) -> None:
        """Forgets the last evaluation."""
        self._forget(self.split)

    def on_test_epoch_start(self) -> None:
        """Forgets the last evaluation."""
        self._forget("test")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the metrics of the split that is watched during training."""
        self._evaluate(batch, self.split)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the metrics on test."""
        self._evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        """Logs the metrics of the split that is watched during training."""
        self._log_metrics(self.split)

    def on_test_epoch_end(self) -> None:
        """Logs the metrics on test."""
        self._log_metrics("test")

    def configure_optimizers(self) -> Any:
        """The recipe's optimiser and the schedule of its learning rate."""
        optimizer = make_optimizer(self.model, self.recipe.optimizer)
        if self.recipe.schedule == "constant":
            return optimizer
        schedule = make_schedule(optimizer, self.recipe, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _evaluated(self, split: str) -> list[tuple[str, nn.Module, MetricCollection]]:
        """What is evaluated: end of the metrics' names, model and metrics, of the weights and of their average."""
        models = {"": self.model} | ({} if self.ema is None else {EMA: self.ema.module})
        found = []
        for suffix, model in models.items():
            metrics = self.evaluations[split + suffix]
            assert isinstance(metrics, MetricCollection)
            found.append((suffix, model, metrics))
        return found

    def _forget(self, split: str) -> None:
        for _, _, metrics in self._evaluated(split):
            metrics.reset()

    def _evaluate(self, batch: Batch, split: str) -> None:
        real = batch["weight"] > 0
        for _, model, metrics in self._evaluated(split):
            # Also where nothing is real: under FSDP all processes have to call the model.
            outputs, _ = model(batch["x"], batch["padding_mask"])
            if real.any():
                metrics.update(outputs.float()[real], batch["y"][real])

    def _log_metrics(self, split: str) -> None:
        self.log_dict(
            {
                f"{split}/{name}{suffix}": value
                for suffix, _, metrics in self._evaluated(split)
                for name, value in metrics.compute().items()
            },
            logger=False,
            sync_dist=True,
        )


def _moving_average(model: nn.Module, decay: float) -> Any:
    # Imported here: timm takes seconds, and most recipes average nothing.
    from timm.utils import ModelEmaV3

    # Buffers are copied: a mean of random matrices that are drawn again and again is none of them.
    return ModelEmaV3(model, decay, exclude_buffers=True).requires_grad_(False)
