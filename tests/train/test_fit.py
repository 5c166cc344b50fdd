"""Training in this process, on the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reattend.attention import Capabilities, MultiHeadAttention
from reattend.config import RunConfig, compose, read
from reattend.errors import ReattendError
from reattend.runs.metrics import read_metrics
from reattend.runs.result import Result, read_result
from reattend.train.execute import execute, plan
from tests.small_run import SMALL

# Nothing in these depends on how a batch is cut: LayerNorm, no dropout.
ALIKE = ["backbone.options.norm=layer", "recipe.dropout=0", "recipe.attention_dropout=0"]


def config(outputs: Path, *overrides: str) -> RunConfig:
    return read(compose([*SMALL, f"outputs={outputs}", *overrides]))


def trained(outputs: Path, *overrides: str) -> Result:
    planned = plan(config(outputs, *overrides))
    execute(planned)
    return read_result(planned.folder)


def losses(result: Result) -> list[float]:
    return [selected.metrics["test/loss"] for selected in result.metrics.values()]


def test_accumulation_changes_neither_identity_nor_numbers(tmp_path: Path) -> None:
    whole = trained(tmp_path / "1", *ALIKE, "recipe.batch_size=28")
    parts = trained(tmp_path / "4", *ALIKE, "recipe.batch_size=28", "trainer.accumulation=4")
    assert whole.fingerprint == parts.fingerprint
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)
    assert parts.metrics["last"].step == whole.metrics["last"].step
    written = [read_metrics(path) for path in sorted(tmp_path.rglob("metrics.csv"))]
    train_losses = [[row.value for row in rows if row.metric == "train/loss"] for rows in written]
    assert train_losses[1] == pytest.approx(train_losses[0], rel=1e-4)


def test_seeds_differ_and_a_seed_repeats_to_the_digit(tmp_path: Path) -> None:
    first, again, other = (trained(tmp_path / name, f"seed={seed}") for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert first.metrics == again.metrics
    assert losses(first) != losses(other)
    assert first.fingerprint != other.fingerprint


def test_attentions_of_one_seed_start_from_the_same_weights_and_see_the_same_data(tmp_path: Path) -> None:
    """With beta = 0 or scales = 1 the mechanisms are softmax attention, in training too."""
    plain = trained(tmp_path / "softmax")
    assert losses(trained(tmp_path / "bn", "attention=bn", "beta=none")) == losses(plain)
    assert losses(trained(tmp_path / "sh", "attention=sh", "scales=none")) == losses(plain)


def test_learns_the_rule_of_the_stand_in(tmp_path: Path) -> None:
    result = trained(tmp_path, "recipe.epochs=30")
    assert result.metrics["last"].metrics["test/accuracy"] > 3 / 9


@pytest.mark.parametrize(("epochs", "evaluated"), [(1, [1]), (3, [2, 3])])
def test_the_last_epoch_is_evaluated_whatever_the_interval(tmp_path: Path, epochs: int, evaluated: list[int]) -> None:
    result = trained(tmp_path, f"recipe.epochs={epochs}", "recipe.eval_every_epochs=2")
    (path,) = tmp_path.rglob("metrics.csv")
    rows = read_metrics(path)
    assert [row.epoch for row in rows if row.metric == "test/accuracy"] == evaluated
    last, best = result.metrics["last"], result.metrics["best_on_test"]
    losses_by_epoch = {row.epoch: row.value for row in rows if row.metric == "train/loss"}
    assert [chosen.metrics["train/loss"] for chosen in (last, best)] == [
        losses_by_epoch[chosen.epoch] for chosen in (last, best)
    ]
    assert last.epoch == epochs
    assert best.metrics["test/accuracy"] >= last.metrics["test/accuracy"]


def test_a_mixer_that_lets_padding_in_is_refused_on_padded_series(tmp_path: Path) -> None:
    def leaky(cls: type, **options: object) -> Capabilities:
        return Capabilities(padding_mask=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiHeadAttention, "capabilities", classmethod(leaky))
        with pytest.raises(ReattendError, match="padding_mask=False"):
            plan(config(tmp_path))


def test_bfloat16_trains_and_is_another_run(tmp_path: Path) -> None:
    full, half = trained(tmp_path), trained(tmp_path, "trainer.precision=bf16-mixed")
    assert full.fingerprint != half.fingerprint
    assert losses(half) == pytest.approx(losses(full), rel=0.1)


@pytest.fixture
def deterministic() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_deterministic_mode_runs(tmp_path: Path) -> None:
    assert trained(tmp_path, "trainer.deterministic=true").metrics


def test_layers_may_differ(tmp_path: Path) -> None:
    result = trained(tmp_path, "backbone.options.depth=2", "attention=layers", "++attention.at={-1: linear}")
    assert result.attention == "layers"
    other = trained(tmp_path, "backbone.options.depth=2", "attention=layers", "++attention.at={0: linear}")
    assert result.fingerprint != other.fingerprint


@pytest.mark.slow
def test_a_compiled_model_has_the_keys_and_numbers_of_a_plain_one(tmp_path: Path) -> None:
    import reattend

    plain = trained(tmp_path / "plain", "recipe.epochs=2", *ALIKE)
    compiled = config(tmp_path / "compiled", "recipe.epochs=2", *ALIKE, "compile=true")
    planned = plan(compiled)
    execute(planned)
    result = read_result(planned.folder)
    assert result.fingerprint == plain.fingerprint
    assert losses(result) == pytest.approx(losses(plain), rel=1e-3)
    assert not any("_orig_mod" in name for name in reattend.load(planned.folder).state_dict())
