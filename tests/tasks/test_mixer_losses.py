"""Losses of mixers in training: squared means over the global batch, weights, and measurements that are only logged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reattend.backbones.losses import over_layers
from reattend.config.schema import OptimizerConfig, RecipeConfig
from reattend.errors import ReattendError
from reattend.tasks.classification import Classification
from reattend.tasks.measurements import Measurements

RECIPE = RecipeConfig("small", "", OptimizerConfig("adam", 0.01), "constant", 1, 4, None, 1, 0.0, 0.0)


class Model(nn.Module):
    """Its mixers' losses are linear in one parameter: J of layer l is w_l times the sum of the sample."""

    def __init__(self, reduction: Any = "mean", squared: bool = True) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -2.0]))
        self.reduction = reduction
        self.name = "ksvd^2" if squared else "ksvd"

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        sums = x.sum((1, 2))
        layers: list[dict[str, Tensor]] = [{self.name: w * sums, "ksvd/J/0": 7.0 * sums} for w in self.w]
        return torch.zeros(len(x), 3) + 0 * self.w.sum(), over_layers(layers, self.reduction)


def task_of(model: Model, world: list[Tensor] | None = None, accumulation: int = 1) -> Classification:
    """A task in one process of several; `world` are what the other processes add to a sum over all."""
    task = Classification(model, num_outputs=3, recipe=RECIPE, seed=0, split="test", loss_weights={"ksvd": 0.1})
    others = world or []
    strategy = SimpleNamespace(reduce=lambda value, reduce_op: sum(others, start=value))
    size = len(others) + 1
    task._trainer = SimpleNamespace(world_size=size, accumulate_grad_batches=accumulation, strategy=strategy)  # type: ignore[assignment]
    return task


def batch_of(x: Tensor, weight: Tensor, size: int) -> dict[str, Any]:
    y = torch.zeros(len(x), dtype=torch.long)
    return {"x": x, "padding_mask": None, "y": y, "weight": weight, "global_size": torch.tensor(float(size))}


@pytest.fixture(autouse=True)
def trainer_property(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classification, "trainer", property(lambda self: self._trainer))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_mean_over_all_processes_is_squared(reduction: Any) -> None:
    x = torch.randn(5, 2, 2)
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])  # a filler among them
    model = Model(reduction)
    share = [weight[:3] / 4, weight[3:] / 4]
    parts = [x[:3], x[3:]]
    scale = 1.0 if reduction == "sum" else 0.5**0.5
    sums = [
        scale * (w[:, None] * model(p, None)[1]["ksvd^2"] / scale).sum(0).detach()
        for w, p in zip(share, parts, strict=True)
    ]
    losses, slopes = [], []
    for own, other in ((0, 1), (1, 0)):
        task = task_of(model, [sums[other]])
        loss = task._micro_batch_loss(batch_of(parts[own], share[own] * 4, 4))
        losses.append(loss.detach())
        slopes.append(torch.autograd.grad(loss, model.w)[0])
    means = model.w * (share[0] @ x[:3].sum((1, 2)) + share[1] @ x[3:].sum((1, 2)))
    wanted = 0.1 * means.square().sum() * (1.0 if reduction == "sum" else 0.5) + torch.log(torch.tensor(3.0))
    # What processes have is averaged, as DistributedDataParallel does with gradients.
    torch.testing.assert_close(sum(losses) / 2, wanted.detach())
    torch.testing.assert_close(sum(slopes) / 2, torch.autograd.grad(wanted, model.w)[0])


def test_parts_of_a_batch_are_refused() -> None:
    task = task_of(Model(), accumulation=2)
    with pytest.raises(ReattendError, match=r"trainer\.accumulation=1"):
        task._micro_batch_loss(batch_of(torch.randn(2, 2, 2), torch.ones(2), 2))


def test_measurements_are_logged_and_part_of_no_loss() -> None:
    x = torch.randn(2, 2, 2)
    model = Model(squared=False)
    task = task_of(model)
    loss = task._micro_batch_loss(batch_of(x, torch.tensor([1.0, 0.0]), 1))
    wanted = torch.log(torch.tensor(3.0)) + 0.1 * model.w.mean() * x[0].sum()
    torch.testing.assert_close(loss, wanted)
    assert task.take_measurements() == pytest.approx({"ksvd/J/0": 7.0 * x[0].sum().item()})
    assert task.take_measurements() == {}


def test_measurements_of_an_interrupted_epoch_go_on() -> None:
    task = task_of(Model())
    task.measurements.add({"a/b": torch.tensor([1.0, 2.0])}, torch.ones(2))
    checkpoint: dict[str, Any] = {}
    task.on_save_checkpoint(checkpoint)
    resumed = task_of(Model())
    resumed.on_load_checkpoint(checkpoint)
    resumed.measurements.add({"a/b": torch.tensor([9.0, 5.0])}, torch.tensor([1.0, 0.0]))
    assert resumed.take_measurements() == {"a/b": 4.0}
    assert Measurements().take(lambda sums: sums) == {}


def test_over_layers() -> None:
    layers = [
        {"a": torch.tensor([1.0]), "a/b": torch.tensor([3.0])},
        {},
        {"a": torch.tensor([3.0]), "a/b": torch.tensor([5.0])},
    ]
    assert over_layers(layers) == {"a": torch.tensor([2.0]), "a/b": torch.tensor([4.0])}
    assert over_layers(layers, "sum") == {"a": torch.tensor([4.0]), "a/b": torch.tensor([4.0])}


@pytest.mark.parametrize("name", ["ksdv", "foo"])
def test_a_weight_for_a_loss_that_no_mixer_returns_is_refused_at_the_first_step(name: str) -> None:
    task = task_of(Model())
    task.loss_weights = {name: 0.1}
    batch = {"x": torch.ones(2, 3, 1), "padding_mask": None, "y": torch.zeros(2, dtype=torch.long)}
    batch |= {"weight": torch.ones(2), "global_size": 2}
    with pytest.raises(ReattendError, match=f"attention.loss_weights.{name}: no layer.*They return: ksvd"):
        task._micro_batch_loss(batch)
