"""What checks found, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True)
class Result:
    """What one check found.

    Attributes:
        check: name of the check, "module.function" of `reattend.conformance.checks`.
        title: what holds when it passes, in words.
        status: how it ended.
        note: passed: a figure or remark; not applicable: why.
        measured: the figure that decided, where there is one.
        expected: failed: what should have been seen.
        seen: failed: what was seen, with its numbers.
        look_at: failed: class, method, file and line, and what to do there.
        place: failed: what the mixer was built for.
    """

    check: str
    title: str
    status: Status
    note: str = ""
    measured: float | None = None
    expected: str = ""
    seen: str = ""
    look_at: str = ""
    place: str = ""


@dataclass(frozen=True)
class Report:
    """What all checks found about one mechanism.

    Attributes:
        mechanism: its class.
        location: file and line of the class.
        asked: the command line.
        places: what it was built for.
        parameters: number of parameters.
        flops: stated floating-point operations of one sample, None if it states none.
        results: one for each check.
        seconds: time that all took.
        printed: what the mechanism printed meanwhile.
    """

    mechanism: str
    location: str
    asked: str
    places: Sequence[str]
    parameters: int
    flops: int | None
    results: Sequence[Result]
    seconds: float
    printed: str = ""

    def having(self, status: Status) -> list[Result]:
        """The results that ended so."""
        return [result for result in self.results if result.status == status]


@dataclass(frozen=True)
class Passed:
    """What a check returns that found nothing wrong."""

    note: str = ""
    measured: float | None = None


class CheckFailed(Exception):  # noqa: N818 - it is raised to tell a result
    """Raised by a check that found something wrong; its arguments are the attributes of `Result`.

    `method` names the method of the mixer to look at, unless `place` says where; `advice` says what for.
    """

    def __init__(
        self,
        expected: str,
        seen: str,
        advice: str,
        *,
        method: str = "forward",
        place: str = "",
        measured: float | None = None,
    ) -> None:
        super().__init__(f"expected {expected}; seen {seen}")
        self.expected = expected
        self.seen = seen
        self.advice = advice
        self.method = method
        self.place = place
        self.measured = measured


class NotApplicable(Exception):  # noqa: N818 - it is no error
    """Raised by a check that does not concern the mixer; the message says why."""
