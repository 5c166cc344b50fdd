"""Failures of a sweep, gathered over the runs of a multirun, which may be processes of their own."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

FAILURES = "REATTEND_FAILURES"


@dataclass(frozen=True)
class Failure:
    """A run that failed: its folder or command, the exception's class and its message."""

    run: str
    type: str
    message: str

    def __str__(self) -> str:
        return f"{self.run}: {self.type}: {self.message}"


def record_failure(run: str | Path, error: BaseException) -> None:
    """Appends to the file that the environment variable REATTEND_FAILURES names; without it there is no sweep."""
    if log := os.environ.get(FAILURES):
        line = json.dumps([str(run), type(error).__name__, str(error)]) + "\n"
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())  # one write: lines of several processes never mix
        finally:
            os.close(handle)


def collected_failures() -> list[Failure]:
    """What `record_failure` has written so far, in order."""
    log = os.environ.get(FAILURES)
    if not log or not Path(log).exists():
        return []
    return [Failure(*json.loads(line)) for line in Path(log).read_text().splitlines()]
