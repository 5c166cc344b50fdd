"""The trials of an Optuna study that is stopped and taken up again."""

from __future__ import annotations

import warnings
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

_INTERRUPTED = "interrupted"


def storage_url(folder: Path) -> str:
    """The study's database, as SQLAlchemy names it."""
    return f"sqlite:///{(folder / 'study.db').absolute()}"


def open_study(folder: Path, direction: str) -> optuna.Study:
    """The study in `folder`, which is made if it is not there."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        storage=storage_url(folder), study_name=folder.name, direction=direction, load_if_exists=True
    )


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a value and failed ones, in order."""
    interrupted = study.user_attrs.get(_INTERRUPTED, [])
    return [trial for trial in study.get_trials() if trial.state.is_finished() and trial.number not in interrupted]


def take_up_interrupted(study: optuna.Study) -> None:
    """Puts what a killed process was trying in front: its run goes on from its checkpoint.

    Only whoever has claimed the study's folder may do so.
    """
    for trial in study.get_trials():
        if trial.state is TrialState.RUNNING:
            if trial.params:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                    study.enqueue_trial(trial.params)
            study.set_user_attr(_INTERRUPTED, [*study.user_attrs.get(_INTERRUPTED, []), trial.number])
            study.tell(trial.number, state=TrialState.FAIL)


def best(study: optuna.Study) -> FrozenTrial | None:
    """The earliest of those with the best value; None without any."""
    values = [(trial.value, trial) for trial in finished(study) if trial.value is not None]
    pick = max if study.direction is optuna.study.StudyDirection.MAXIMIZE else min
    return pick(values, key=lambda pair: pair[0], default=(None, None))[1]
