"""Side-by-side timing in one run."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate, and its ratio to the baseline round by round.

    Attributes:
        seconds: median over rounds.
        ratio: median over rounds of its time divided by the baseline's in the same round.
        low: lower quartile of that ratio.
        high: upper quartile of that ratio.
    """

    seconds: float
    ratio: float
    low: float
    high: float


def compare(candidates: Mapping[str, Callable[[], object]], baseline: str, rounds: int) -> dict[str, Timing]:
    """Times every candidate once per round, in an order shuffled for each round, after one round to warm up.

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
    return {name: _timing(seconds[name], seconds[baseline]) for name in candidates}


def _timing(seconds: list[float], baseline: list[float]) -> Timing:
    ratios = [own / other for own, other in zip(seconds, baseline, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return Timing(statistics.median(seconds), ratio, low, high)
