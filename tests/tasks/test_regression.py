"""Regression: its loss, its metrics, and a run that learns the stand-in's rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from reattend.config import compose, read
from reattend.tasks import Regression
from reattend.tasks.mean_error import MeanError
from reattend.train.execute import execute, plan
from tests.small_run import SMALL


def test_mean_errors_are_those_of_the_formula_over_uneven_batches() -> None:
    torch.manual_seed(0)
    outputs, y = 100 + torch.randn(7, 1), 100 + torch.randn(7)
    errors = (outputs.double().squeeze(1) - y.double()).abs()
    expected = {(1, False): errors.mean(), (2, False): errors.square().mean(), (2, True): errors.square().mean().sqrt()}
    for (power, root), value in expected.items():
        metric = MeanError(power, root)
        for rows in (slice(0, 5), slice(5, 7)):
            metric.update(outputs[rows], y[rows])
        torch.testing.assert_close(metric.compute().double(), value, rtol=1e-6, atol=0)


def regression(num_outputs: int = 1) -> Regression:
    config = read(compose(["task=tser/appliances_energy"]))
    options = {"recipe": config.recipe, "seed": 0, "split": "test", "loss_weights": {}}
    return Regression(nn.Linear(2, num_outputs), num_outputs=num_outputs, **options)


def test_the_loss_is_the_squared_error_of_targets_as_they_are() -> None:
    losses = regression().losses(torch.tensor([[1.0], [200.0]]), torch.tensor([3.0, 197.0]))
    assert losses.tolist() == [4.0, 9.0]
    metrics = regression().make_metrics()
    metrics.update(torch.tensor([[1.0], [200.0]]), torch.tensor([3.0, 197.0]))
    assert {name: float(value) for name, value in metrics.compute().items()} == pytest.approx(
        {"rmse": 6.5**0.5, "mae": 2.5, "loss": 6.5}
    )


def test_one_output_only() -> None:
    with pytest.raises(ValueError, match="one output, not 2"):
        regression(2)


@pytest.mark.parametrize("protocol", ["published", "strict"])
def test_a_run_learns_the_rule_and_keeps_the_lowest_error(tmp_path: Path, protocol: str) -> None:
    overrides = [
        "task=tser/appliances_energy",
        f"protocol={protocol}",
        *SMALL,
        "recipe.epochs=16",
        "recipe.batch_size=8",
    ]
    planned = plan(read(compose([*overrides, "attention=bn", f"outputs={tmp_path}"])))
    execute(planned)
    metrics = json.loads((planned.folder / "result.json").read_text())["metrics"]
    best = metrics["best_on_test" if protocol == "published" else "best_on_validation"]["metrics"]
    assert best["test/rmse"] < 0.45  # the targets are uniform on [-1, 1], whose standard deviation is 0.58
    assert best["test/mae"] <= best["test/rmse"]
    assert best["test/rmse"] == pytest.approx(best["test/loss"] ** 0.5, rel=1e-5)
    if protocol == "published":
        assert best["test/rmse"] <= metrics["last"]["metrics"]["test/rmse"]
