"""How pages print numbers."""

from __future__ import annotations

from reattend.tables.evidence import Measured


def plain(number: float, digits: int) -> str:
    """With that many digits after the point and a true minus sign."""
    return f"{number:.{digits}f}".replace("-", "−")


def signed(number: float, digits: int) -> str:
    """As `plain`, with a plus sign where it is not negative."""
    return f"{number:+.{digits}f}".replace("-", "−")


def mean_and_spread(measured: Measured, digits: int) -> str:
    """Mean ± sample standard deviation (number of seeds)."""
    spread = "" if measured.std is None else f" ± {plain(measured.std, digits)}"
    return f"{plain(measured.mean, digits)}{spread} ({len(measured.by_seed)})"


def interval(ends: tuple[float, float], digits: int) -> str:
    """A confidence interval."""
    return f"[{plain(ends[0], digits)}, {plain(ends[1], digits)}]"


def probability(p: float | None) -> str:
    """A p value; those below 0.001 are not told apart."""
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float) -> str:
    """Hours, minutes or seconds, whichever is readable."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.1f} s"


def seeds(count: int | None) -> str:
    """What `more_seeds` says."""
    return "" if count is None else f"about {count} more seed{'s' if count > 1 else ''}"
