"""Whole searches: through Hydra's sweeper with an arithmetic for the runs, and once with real ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import pytest

from reattend.config import compose, config_dir, read
from reattend.errors import ReattendError
from reattend.runs.lease import Lease
from reattend.runs.result import read_result
from reattend.runs.sweep import FAILURES
from reattend.search.best import Best, read_best
from reattend.search.command import run_searches, validation_metric
from reattend.search.plan import Search, plan_searches
from reattend.train.command import main
from tests.small_run import SMALL

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")

LR = ["attention=bn", *SMALL, "search=lr", "protocol=strict"]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Search]:
    """Searches the learning rate with `value(lr, number of runs so far)` for the validation metric."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def run(folder: str, trials: int, value: Callable[[float, int], Any]) -> Search:
        calls: list[float] = []

        def job(cfg: Any) -> Any:
            calls.append(cfg.recipe.optimizer.lr)
            return value(calls[-1], len(calls))

        arguments = [*LR, f"outputs={tmp_path / folder}", f"hydra.sweeper.n_trials={trials}"]
        found = plan_searches(["-m"], arguments)
        sweep = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="train")(job)
        run_searches(found, ["-m"], sweep)
        return found[0]

    return run


def outcome(search: Search) -> Best:
    return read_best(search.folder / "best.yaml")


def quality(lr: float, _: int) -> float:
    return -abs(math.log10(lr) + 3)


@pytest.mark.slow
def test_a_killed_search_goes_on_with_the_trial_that_it_was_at(search: Callable[..., Search]) -> None:
    tried: list[float] = []

    def killed_once(lr: float, number: int) -> float:
        tried.append(lr)
        if len(tried) == 3:
            sys.exit(130)
        return quality(lr, number)

    with pytest.raises(SystemExit):
        search("with a space", 5, killed_once)
    resumed = outcome(search("with a space", 5, killed_once))
    assert tried[2] == tried[3]
    assert len(tried) == 6
    unbroken = outcome(search("unbroken", 5, quality))
    assert resumed.history == unbroken.history
    assert (resumed.value, resumed.trials) == (unbroken.value, 5)
    assert max(trial.value for trial in resumed.history if trial.value is not None) == resumed.value


def test_failed_trials_count_and_do_not_end_a_search(search: Callable[..., Search]) -> None:
    best = outcome(search("a", 4, lambda lr, number: None if number == 2 else quality(lr, number)))
    assert (best.trials, best.failed) == (4, 1)
    assert [trial.value is None for trial in best.history] == [False, True, False, False]


@pytest.mark.slow
def test_a_finished_search_tries_nothing_more_until_it_is_given_more_trials(
    search: Callable[..., Search], capsys: pytest.CaptureFixture[str]
) -> None:
    first = outcome(search("a", 3, quality))
    assert outcome(search("a", 3, lambda lr, number: pytest.fail("a trial"))) == first
    assert "best of 3 trials by val/accuracy (search=lr, seed 0)" in capsys.readouterr().out
    longer = outcome(search("a", 5, quality))
    assert longer.trials == 5
    assert longer.history[:3] == first.history


@pytest.mark.slow
def test_a_search_of_which_every_trial_failed_says_so(search: Callable[..., Search], tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match="All 3 trials of search=lr failed"):
        search("a", 3, lambda lr, number: None)
    assert not list(tmp_path.glob("**/best.yaml"))


@pytest.mark.slow
def test_another_process_at_the_same_search_is_left_alone(search: Callable[..., Search]) -> None:
    folder = search("a", 1, quality).folder
    with Lease.claim(folder), pytest.raises(ReattendError, match="is claimed by process"):
        search("a", 2, quality)


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf, None])
def test_only_a_finite_number_on_validation_is_compared(value: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = {"last": SimpleNamespace(metrics={"test/accuracy": 0.9})}
    if value is not None:
        metrics["best_on_validation"] = SimpleNamespace(metrics={"test/accuracy": 0.9, "val/accuracy": value})
    monkeypatch.setattr("reattend.search.command.read_result", lambda folder: SimpleNamespace(metrics=metrics))
    assert validation_metric(Path(), read(compose())) == (0.5 if value == 0.5 else None)


def test_real_runs_are_searched_and_the_best_is_trained_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FAILURES, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def train(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        main()
        return capsys.readouterr().out

    shown = train(*LR, "recipe.epochs=2", f"outputs={tmp_path}", "hydra.sweeper.n_trials=3", "-m")
    results = [read_result(path.parent) for path in tmp_path.glob("runs/**/result.json")]
    assert len(results) == 3
    (path,) = tmp_path.glob("search/**/best.yaml")
    best = read_best(path)
    values = [result.metrics["best_on_validation"].metrics["val/accuracy"] for result in results]
    assert sorted(values) == sorted(trial.value or 0.0 for trial in best.history)
    assert best.value == max(values)
    assert f"python train.py -m search=seeds best={path}" in shown
    assert shown.count("Next, five seeds") == 1
    assert "test/" not in shown
    assert shown.count("bn on uea/japanese_vowels, seed 0: val/accuracy ") == 3
    assert "This run is finished" in train(f"best={path}", f"outputs={tmp_path}")
