"""Is a published number reproduced? Two one-sided tests of equivalence."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy import stats

from reattend.tables.evidence import CellVerdict, Measured

LEVEL = 0.05  # of each one-sided test
POWER = 0.8
LEAST_SEEDS = 3
MOST_SEEDS = 1000  # beyond this "more seeds" is no advice


@dataclass(frozen=True)
class Comparison:
    """The difference of ours from a published number, with its verdict; see `PlaceEvidence`."""

    difference: float
    interval: tuple[float, float]
    verdict: CellVerdict
    more_seeds: int | None


def compare(
    ours: Measured, number: float, margin: float, spread: float | None = None, runs: int | None = None
) -> Comparison:
    """Tests whether the mean of ours differs from `number` by less than `margin`.

    The 90 % confidence interval of the difference of means is that of Student's one-sample t, or of Welch's two-sample
    t where the published spread over at least two runs is known. The number is reproduced if the interval lies within
    (-margin, margin), which is the two one-sided tests at 5 % (Schuirmann 1987), and different if it lies outside of
    that range as a whole.

    Args:
        ours: at least three seeds.
        number: the published mean.
        margin: above zero, in the same unit.
        spread: the standard deviation over the published runs.
        runs: how many these are.

    Raises:
        ValueError: for fewer than three seeds.
    """
    count, std = len(ours.by_seed), ours.std
    if count < LEAST_SEEDS or std is None:
        raise ValueError(f"{count} seeds are too few for a verdict")
    theirs = (spread, runs) if spread is not None and runs is not None and runs > 1 else (0.0, None)
    difference = ours.mean - number
    half = _half_width(std, count, *theirs)
    interval = (difference - half, difference + half)
    if -margin < interval[0] and interval[1] < margin:
        return Comparison(difference, interval, "reproduced", None)
    if interval[0] >= margin or interval[1] <= -margin:
        return Comparison(difference, interval, "different", None)
    distance = abs(margin - abs(difference))
    needed = seeds_needed(lambda n: _needed_distance(std, n, *theirs), distance, count)
    return Comparison(difference, interval, "undecided", None if needed is None else needed - count)


def seeds_needed(distance_at: Callable[[int], float], distance: float, count: int) -> int | None:
    """The smallest number of seeds above `count` at which an effect of `distance` is seen with a power of 80 %."""
    more = range(count + 1, MOST_SEEDS + 1)
    place = bisect.bisect_left(more, True, key=lambda seeds: distance_at(seeds) <= distance)
    return more[place] if place < len(more) else None


def _standard_error(std: float, count: int, spread: float, runs: int | None) -> tuple[float, float]:
    """Of the difference of means, with its degrees of freedom (Welch-Satterthwaite)."""
    ours, theirs = std**2 / count, 0.0 if runs is None else spread**2 / runs
    if ours + theirs == 0.0 or runs is None:
        return math.sqrt(ours), count - 1
    freedom = (ours + theirs) ** 2 / (ours**2 / (count - 1) + theirs**2 / (runs - 1))
    return math.sqrt(ours + theirs), freedom


def _half_width(std: float, count: int, spread: float, runs: int | None) -> float:
    error, freedom = _standard_error(std, count, spread, runs)
    return float(stats.t.ppf(1 - LEVEL, freedom) * error)


def _needed_distance(std: float, count: int, spread: float, runs: int | None) -> float:
    """How far from the margin a difference must be for the test to see it with a power of 80 %, roughly."""
    error, freedom = _standard_error(std, count, spread, runs)
    return float((stats.t.ppf(1 - LEVEL, freedom) + stats.t.ppf(POWER, freedom)) * error)
