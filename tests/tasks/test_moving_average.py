"""An exponential moving average of the weights, evaluated beside them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reattend.config.schema import OptimizerConfig, RecipeConfig
from reattend.tasks import ImageClassification

RECIPE = RecipeConfig("small", "", OptimizerConfig("sgd", 0.1), "constant", 1, 4, None, 1, 0.0, 0.0, ema_decay=0.75)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 7, bias=False)

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        return self.layer(x), {}


def make_task() -> ImageClassification:
    return ImageClassification(Linear(), num_outputs=7, recipe=RECIPE, seed=0, split="test", loss_weights={})


def test_the_average_follows_its_formula_from_the_initial_weights_on() -> None:
    task = make_task()
    expected = task.model.layer.weight.detach().clone()
    for _ in range(4):
        task.model.layer.weight.data += torch.randn(7, 3)
        task.ema.update(task.model)
        expected = 0.75 * expected + 0.25 * task.model.layer.weight.detach()
    torch.testing.assert_close(task.ema.module.layer.weight, expected)
    assert not any(parameter.requires_grad for parameter in task.ema.parameters())


def test_both_models_are_evaluated_and_a_batchs_fillers_count_in_neither() -> None:
    task = make_task()
    task.model.layer.weight.data.zero_()
    task.model.layer.weight.data[:, 0] = torch.arange(7.0)
    task.ema.module.layer.weight.data = -task.model.layer.weight.data
    x = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [1.0, 0, 0]])
    batch = {"x": x, "padding_mask": None, "y": torch.tensor([6, 2, 6]), "weight": torch.tensor([1.0, 1.0, 0.0])}
    task._evaluate(batch, "test")
    found = {suffix: metrics.compute() for suffix, _, metrics in task._evaluated("test")}
    assert found[""]["accuracy"] == 0.5
    assert found[""]["top5"] == 1.0
    assert found["_ema"]["accuracy"] == 0.0
    assert found["_ema"]["top5"] == 0.5


def test_class_probabilities_are_targets() -> None:
    task = make_task()
    logits = torch.randn(2, 7)
    y = torch.softmax(torch.randn(2, 7), -1)
    expected = -(y * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(task.losses(logits, y), expected)


def test_a_batch_of_fillers_counts_nowhere() -> None:
    task = make_task()
    batch = {"x": torch.ones(2, 3), "padding_mask": None, "y": torch.zeros(2, dtype=torch.int64)}
    task._evaluate(batch | {"weight": torch.zeros(2)}, "test")
    task._evaluate(batch | {"weight": torch.ones(2)}, "test")
    assert 0 <= task._evaluated("test")[0][2].compute()["accuracy"] <= 1


def test_buffers_are_copied_not_averaged() -> None:
    """A random matrix that is drawn again and again has no mean worth the name."""
    task = make_task()
    model = nn.BatchNorm1d(3)
    average = type(task.ema)(model, 0.75, exclude_buffers=task.ema.exclude_buffers)
    model.running_mean.fill_(8.0)
    average.update(model)
    assert average.module.running_mean.tolist() == [8.0] * 3
