"""Limits of numbers in the configuration, as annotations that binding reads."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated

_COMPARISONS = {
    "at least": operator.ge,
    "above": operator.gt,
    "at most": operator.le,
    "below": operator.lt,
}


@dataclass(frozen=True)
class Limit:
    """A bound of a number: `Limit("at least", 1)`, with "at least", "above", "at most" or "below"."""

    comparison: str
    bound: float

    def admits(self, value: float) -> bool:
        """Whether `value` keeps the bound."""
        return bool(_COMPARISONS[self.comparison](value, self.bound))

    def __str__(self) -> str:
        return f"{self.comparison} {self.bound}"


Count = Annotated[int, Limit("at least", 1)]
Epochs = Annotated[int, Limit("at least", 1), Limit("at most", 10**9)]
BatchSize = Annotated[int, Limit("at least", 1), Limit("at most", 2**31)]
Dimension = Annotated[int, Limit("at least", 1), Limit("at most", 2**16)]
Threads = Annotated[int, Limit("at least", 1), Limit("at most", 1024)]
NonNegativeInt = Annotated[int, Limit("at least", 0)]
Positive = Annotated[float, Limit("above", 0)]
NonNegative = Annotated[float, Limit("at least", 0)]
Fraction = Annotated[float, Limit("at least", 0), Limit("below", 1)]
Share = Annotated[float, Limit("at least", 0), Limit("at most", 1)]
CropRatio = Annotated[float, Limit("above", 0), Limit("at most", 1)]
