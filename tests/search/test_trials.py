"""Studies that are stopped and taken up again; an arithmetic stands in for the runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna")

from optuna.distributions import LogUniformDistribution, UniformDistribution  # noqa: E402
from optuna.trial import TrialState  # noqa: E402

from reattend.search.sampler import ResumableTPESampler  # noqa: E402
from reattend.search.trials import best, finished, open_study, storage_url, take_up_interrupted  # noqa: E402

SPACE = {"lr": LogUniformDistribution(1e-4, 1e-2), "beta": UniformDistribution(0.0, 1.0)}


def attend(folder: Path, trials: int, stop_in: int | None = None, fail_in: int | None = None) -> None:
    """What Hydra's sweeper does with a study; `stop_in` leaves a trial as a killed process would."""
    folder.mkdir(exist_ok=True)
    study = open_study(folder, "maximize")
    study = optuna.load_study(folder.name, storage_url(folder), sampler=ResumableTPESampler(seed=3))
    take_up_interrupted(study)
    while (number := len(finished(study))) < trials:
        trial = study.ask()
        lr, beta = (trial._suggest(key, space) for key, space in SPACE.items())
        if number == stop_in:
            return
        if number == fail_in:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, -((math.log10(lr) + 3) ** 2) - (beta - 0.3) ** 2)


def history(folder: Path) -> list[tuple[dict[str, float], float | None]]:
    return [(trial.params, trial.value) for trial in finished(open_study(folder, "maximize"))]


def test_a_search_that_was_killed_three_times_tries_the_same(tmp_path: Path) -> None:
    attend(tmp_path / "unbroken", 14, fail_in=2)
    for stop in (1, 4, 12):
        attend(tmp_path / "killed", 14, stop_in=stop, fail_in=2)
    attend(tmp_path / "killed", 14, fail_in=2)
    assert history(tmp_path / "killed") == history(tmp_path / "unbroken")
    assert len(history(tmp_path / "killed")) == 14
    assert len({tuple(params.values()) for params, _ in history(tmp_path / "killed")}) == 14


def test_a_trial_that_was_killed_before_it_chose_is_left(tmp_path: Path) -> None:
    study = open_study(tmp_path, "maximize")
    study.ask()
    take_up_interrupted(study)
    assert finished(study) == []
    assert [trial.state for trial in study.get_trials()] == [TrialState.FAIL]


@pytest.mark.parametrize(("direction", "expected"), [("maximize", 1), ("minimize", 0)])
def test_the_earliest_of_the_best_wins(tmp_path: Path, direction: str, expected: int) -> None:
    study = open_study(tmp_path, direction)
    assert best(study) is None
    for value in (0.5, 0.7, 0.7, 0.5):
        study.tell(study.ask(), value)
    study.tell(study.ask(), state=TrialState.FAIL)
    found = best(study)
    assert found is not None
    assert found.number == expected
