"""Optuna's TPE sampler, for searches that are stopped and taken up again."""

from __future__ import annotations

from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial

from reattend.search.trials import finished


class ResumableTPESampler(TPESampler):
    """TPE whose every trial has random numbers of its own.

    Optuna's sampler starts its random numbers anew with each process, so that a search with a seed that is taken up
    again repeats its first trials. Here a trial's follow from the seed and the number of trials before it.

    Args:
        seed: of the search.
        options: of `optuna.samplers.TPESampler`.
    """

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self._seed = seed
        self._options = options
        super().__init__(seed=seed, **options)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """As Optuna's, which calls it once at the start of each trial."""
        # Optuna leaves no other public way to seed it again.
        super().__init__(seed=self._seed + len(finished(study)), **self._options)
        return super().infer_relative_search_space(study, trial)
