"""Runs of Primal-Attention: what is logged of its objective, and that a batch may be spread over processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import reattend
from reattend.attention.naive import primal as naive
from reattend.backbones import UEAEncoder
from reattend.config import ConfigError, check_run, compose, read
from reattend.runs.metrics import read_metrics
from reattend.seeding import derive
from reattend.train.execute import Plan, build_task, execute, plan
from tests.small_run import SMALL

ROOT = Path(__file__).resolve().parents[2]
# Nothing in these depends on how a batch is cut. The objective's part of the gradient is as large as the rest, and SGD
# does not divide its size out.
RUN = [
    *SMALL,
    "attention=primal",
    "attention.options.rank=3",
    "attention.loss_weights.ksvd=0.3",
    "backbone.options.norm=layer",
    "backbone.options.depth=2",
    "recipe.epochs=1",
    "recipe.dropout=0",
    "recipe.optimizer.name=sgd",
]
BATCH = "fidelity.primal.square=batch"


def planned(outputs: Path, *overrides: str) -> Plan:
    return plan(read(compose([*RUN, f"outputs={outputs}", *overrides])))


def trained(outputs: Path, *overrides: str) -> Plan:
    run = planned(outputs, *overrides)
    execute(run)
    return run


def logged(folder: Path) -> dict[str, float]:
    return {row.metric: row.value for row in read_metrics(folder / "metrics.csv") if row.metric.startswith("train/")}


def parts(model: UEAEncoder, x: Tensor, mask: Tensor) -> list[dict[str, Tensor]]:
    """Of each layer what the twin says of its objective, each (B,)."""
    found: list[dict[str, Tensor]] = []

    def note(mixer: Any, inputs: tuple[Any, ...], output: Any) -> None:
        found.append(naive.forward(mixer, *inputs)[1])

    handles = [layer.mixer.register_forward_hook(note) for layer in model.layers]
    with torch.no_grad():
        model(x, mask)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("form", ["fidelity=published", "fidelity=corrected", BATCH])
def test_the_parts_of_the_objective_are_logged_over_all_samples_of_an_epoch(tmp_path: Path, form: str) -> None:
    run = trained(tmp_path, form, "recipe.optimizer.lr=1e-30")
    model = reattend.load(run.folder)
    assert isinstance(model, UEAEncoder)
    data = run.data.train
    assert data.padding_mask is not None
    assert not data.padding_mask.all()
    wanted = {
        f"train/{name}": values.mean().item()
        for layer in parts(model, data.x, data.padding_mask)
        for name, values in layer.items()
        if "/" in name
    }
    found = logged(run.folder)
    del found["train/loss"]
    assert set(wanted) == {f"train/ksvd/{part}/{layer}" for part in ("A_e", "A_r", "T", "J", "L") for layer in (0, 1)}
    assert found == pytest.approx(wanted, rel=1e-4)


def assert_the_same_steps(one: Plan, other: Plan) -> None:
    """Both changed every parameter alike, and logged the same."""
    torch.manual_seed(derive(one.config.seed, "initialisation"))
    before = dict(build_task(one.config, one.data.shape).model.named_parameters())
    for name, parameter in reattend.load(one.folder).named_parameters():
        step = parameter - before[name]
        difference = reattend.load(other.folder).get_parameter(name) - parameter
        # The bias of keys that reach the loss alone and that of queries may have a gradient of rounding errors.
        assert difference.norm() < 1e-3 * step.norm() + 1e-7, name
        assert step.norm() > 0, name
    assert logged(other.folder) == pytest.approx(logged(one.folder), rel=1e-4)


@pytest.mark.slow
def test_the_mean_over_the_whole_batch_is_squared_whatever_the_number_of_processes(tmp_path: Path) -> None:
    one = trained(tmp_path / "1", BATCH)
    options = [*RUN, BATCH, "trainer=ddp", "trainer.accelerator=cpu", f"outputs={tmp_path}/2"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *options],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    two = planned(tmp_path / "2", BATCH)
    assert one.fingerprint == two.fingerprint
    assert_the_same_steps(one, two)


def test_a_loss_of_samples_is_the_same_in_parts_of_a_batch(tmp_path: Path) -> None:
    whole, in_parts = (trained(tmp_path / str(n), f"trainer.accumulation={n}") for n in (1, 2))
    assert_the_same_steps(whole, in_parts)


def test_a_square_over_the_batch_is_another_run_and_refused_in_parts(tmp_path: Path) -> None:
    assert planned(tmp_path).fingerprint != planned(tmp_path, BATCH).fingerprint
    with pytest.raises(ConfigError, match=r"trainer\.accumulation: attention=primal needs the whole batch at once"):
        check_run(read(compose([*RUN, BATCH, "trainer.accumulation=2"])))
