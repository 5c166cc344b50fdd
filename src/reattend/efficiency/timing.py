"""Side-by-side timing in one run."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """One candidate's seconds divided by another's in the same round: median and quartiles over the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def time_rounds(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every candidate in each round: one call a round, in an order shuffled for each, after one to warm up.

    A ratio of two times of the same round is blind to what slows the whole machine down for a while.
    """
    order = list(candidates)
    shuffle = random.Random(0).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for name in order:
        candidates[name]()
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            candidates[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Quartiles of `seconds` divided by `baseline`, round by round."""
    ratios = [own / other for own, other in zip(seconds, baseline, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return Ratio(median, low, high)
