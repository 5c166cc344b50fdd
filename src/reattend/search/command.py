"""Runs searches one after the other, and says what each found."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from reattend.config.reach import overrides_read
from reattend.config.schema import RunConfig
from reattend.errors import ReattendError
from reattend.runs.lease import Lease
from reattend.runs.result import read_result
from reattend.search.best import FILE, Best, TrialRecord, write_best
from reattend.search.plan import Search

# Of the person's machine, of a run of its own, or Hydra's: no part of what was found.
_NOT_KEPT = ("search", "seed", "rerun", "outputs", "launcher", "logger")


def run_searches(searches: Sequence[Search], flags: Sequence[str], job: Callable[[], Any]) -> None:
    """Runs the trials that are missing of each search, and writes its `best.yaml`.

    A trial that was finished is kept; one that failed counts as a trial.

    Args:
        searches: what to do.
        flags: of the command line.
        job: Hydra's main function, which reads `sys.argv`.

    Raises:
        ReattendError: all trials of a search failed, or another process is at it.
    """
    # Hydra prints what a sweeper raises unless it is told not to.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    for search in searches:
        with Lease.claim(search.folder):
            _run(search, flags, job)


def validation_metric(folder: Path, config: RunConfig) -> float | None:
    """What a search compares: the run's metric on validation at its best epoch; None under a protocol without."""
    selected = read_result(folder).metrics.get("best_on_validation")
    value = selected.metrics[f"val/{config.task.metric}"] if selected else math.nan
    # The sweeper would end the whole search at a number that is not finite; at None it counts a failed trial.
    return value if math.isfinite(value) else None


def _run(search: Search, flags: Sequence[str], job: Callable[[], Any]) -> None:
    from reattend.search.trials import best, finished, open_study, storage_url, take_up_interrupted

    study = open_study(search.folder, search.direction)
    take_up_interrupted(study)
    missing = search.trials - len(finished(study))
    if missing > 0:
        sweeper = {
            "params": "null",
            "n_trials": missing,
            "storage": _quoted(storage_url(search.folder)),
            "study_name": _quoted(study.study_name),
            "direction": search.direction,
            "max_failure_rate": 1.0,
        }
        sys.argv[1:] = [
            *flags,
            *search.fixed,
            *(f"{key}={text}" for key, text in search.space.items()),
            *(f"hydra.sweeper.{key}={value}" for key, value in sweeper.items()),
            f"hydra.sweep.dir={_quoted(str(search.folder))}",
        ]
        try:
            job()
        except ValueError:
            if best(study) is not None:
                raise
    trials = finished(study)
    found = best(study)
    if found is None or found.value is None:
        raise ReattendError(
            f"All {len(trials)} trials of search={search.name} failed. Mend the cause, delete {search.folder} and "
            "start the same command again."
        )
    chosen = Best(
        search=search.name,
        metric=search.metric,
        value=found.value,
        trials=len(trials),
        failed=sum(trial.value is None for trial in trials),
        seed=search.config.seed,
        space={key.lstrip("+"): text for key, text in search.space.items()},
        overrides=[*_kept(search.fixed), *_overrides(found.params)],
        history=[TrialRecord(_overrides(trial.params), trial.value) for trial in trials],
    )
    path = search.folder / FILE
    write_best(path, chosen)
    print(f"{search.config.attention.name} on {search.config.task.name}: {chosen}: {chosen.value:.4f}")
    print(f"  {' '.join(_overrides(found.params))}")
    print(f"Next, five seeds: python train.py -m search=seeds {shlex.quote(f'best={path}')}")


def _overrides(params: dict[str, Any]) -> list[str]:
    return [f"{key.removeprefix('++')}={value}" for key, value in params.items()]


def _kept(fixed: Sequence[str]) -> list[str]:
    keys = [override.lstrip("+").partition("=")[0] for override in fixed]
    kept = [
        override
        for key, override in zip(keys, fixed, strict=True)
        if key not in _NOT_KEPT and not key.startswith(("hydra.", "hydra/"))
    ]
    return [override.removeprefix("++") for override in overrides_read(kept)]


def _quoted(text: str) -> str:
    return str(QuotedString(text, Quote.double).with_quotes())
