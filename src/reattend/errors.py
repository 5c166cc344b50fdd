"""Errors that a person can mend: shown as one message, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ReattendError(Exception):
    """Something outside the code is wrong: an option, a file, a run folder. The message says what to do next."""


class RunInterruptedError(ReattendError):
    """A person or the machine's scheduler ended the run."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """ " Did you mean 'x'?" for the valid choice most like `word`, or "" if none is near."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f" Did you mean '{found[0]}'?" if found else ""
