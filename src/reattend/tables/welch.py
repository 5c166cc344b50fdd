"""Means of few runs, compared without assuming that they scatter alike: Welch's t with Satterthwaite's freedom."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from scipy import stats

LEVEL = 0.05  # of each one-sided test
LEAST_SEEDS = 3
_POWER = 0.8
_MOST_SEEDS = 1000  # beyond this "more seeds" is no advice


@dataclass(frozen=True)
class Sample:
    """Mean and sample standard deviation over `count` runs, at least two."""

    mean: float
    std: float
    count: int

    def log(self) -> Sample:
        """Of the logarithm, to first order in std / mean; the mean must be above zero."""
        return Sample(math.log(self.mean), self.std / self.mean, self.count)


@dataclass(frozen=True)
class Effect:
    """A sum or difference of independent means; on the log scale the logarithm of a ratio.

    Attributes:
        value: the estimate.
        ours: the samples in it to which further seeds can be added.
        theirs: those to which none can, the published ones.
    """

    value: float
    ours: tuple[Sample, ...]
    theirs: tuple[Sample, ...] = ()

    @property
    def error(self) -> float:
        """The standard error of `value`."""
        return math.sqrt(sum(self._parts()))

    @property
    def freedom(self) -> float:
        """Degrees of freedom (Welch-Satterthwaite); infinite without any spread."""
        samples = (*self.ours, *self.theirs)
        spread = sum(part**2 / (sample.count - 1) for part, sample in zip(self._parts(), samples, strict=True))
        return sum(self._parts()) ** 2 / spread if spread else math.inf

    def interval(self) -> tuple[float, float]:
        """The 90 % confidence interval: a bound outside of it is excluded by a one-sided test at 5 %."""
        half = self._quantile(LEVEL) * self.error
        return self.value - half, self.value + half

    def p(self, bound: float, alternative: Literal["greater", "less"]) -> float:
        """Of the one-sided test whose alternative is that the effect lies on that side of the bound."""
        distance = self.value - bound if alternative == "greater" else bound - self.value
        if self.error == 0.0:  # all seeds agree: the effect is known
            return 0.0 if distance > 0 else 1.0
        return float(stats.t.sf(distance / self.error, self.freedom))

    def power_inside(self, low: float, high: float, level: float) -> float:
        """The chance that one-sided tests at `level` show the effect above `low` and below `high`, if it is `value`.

        By the noncentral t distribution; a bound may be infinite.
        """
        if self.error == 0.0:
            return float(low < self.value < high)
        quantile, freedom = self._quantile(level), self.freedom
        below = 1.0 if high == math.inf else stats.nct.cdf(-quantile, freedom, (self.value - high) / self.error)
        not_above = 0.0 if low == -math.inf else stats.nct.cdf(quantile, freedom, (self.value - low) / self.error)
        return max(0.0, float(below - not_above))

    def power_outside(self, low: float, high: float, level: float) -> float:
        """As `power_inside`, of a test at `level` that shows the effect below `low`, or above `high`."""
        return max(self.power_inside(-math.inf, low, level), self.power_inside(high, math.inf, level))

    def more_seeds(self, power: Callable[[Effect], float]) -> int | None:
        """How many seeds more each of our samples needs for a power of 80 %; None if no number is seen to do.

        Args:
            power: of the test, from the effect with more seeds and all else as it is.
        """
        fewest = min(sample.count for sample in self.ours)
        counts = range(fewest + 1, _MOST_SEEDS + 1)
        place = bisect.bisect_left(counts, _POWER, key=lambda count: power(self._with_seeds(count)))
        return counts[place] - fewest if place < len(counts) else None

    def _with_seeds(self, count: int) -> Effect:
        return replace(self, ours=tuple(replace(sample, count=max(sample.count, count)) for sample in self.ours))

    def _parts(self) -> list[float]:
        return [sample.std**2 / sample.count for sample in (*self.ours, *self.theirs)]

    def _quantile(self, level: float) -> float:
        return float(stats.t.ppf(1 - level, self.freedom))
