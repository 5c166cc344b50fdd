"""An optimiser's update of a whole model, as training makes it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reattend.config import RunConfig, check_overrides, check_run, compose, normalise_overrides, read
from reattend.tasks.measurements import split_measurements
from reattend.tasks.supervised import SupervisedTask


def configuration(overrides: Sequence[str]) -> RunConfig:
    """The checked configuration that a run with `overrides` has.

    Raises:
        ConfigError: with everything that is wrong.
    """
    check_overrides(overrides)
    config = read(compose(normalise_overrides(overrides)))
    check_run(config)
    return config


def update(task: SupervisedTask, optimizer: torch.optim.Optimizer, x: Tensor, mask: Tensor | None, y: Tensor) -> None:
    """Forward, backward, a step of `optimizer`; waits until the device is done."""
    outputs, losses = task.model(x, mask)
    total: Tensor = task.losses(outputs.float(), y).mean()
    own, _ = split_measurements(losses)
    for name, value in own.items():
        total = total + task.loss_weights.get(name, 1.0) * value.mean()
    total.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
