"""Whether a mechanism keeps the contract of mixers: `run` checks one and gives a `Report`."""

from reattend.conformance.check import Check, all_checks, check, run
from reattend.conformance.page import as_markdown, as_text
from reattend.conformance.results import CheckFailed, NotApplicable, Passed, Report, Result
from reattend.conformance.subject import Subject

__all__ = [
    "Check",
    "CheckFailed",
    "NotApplicable",
    "Passed",
    "Report",
    "Result",
    "Subject",
    "all_checks",
    "as_markdown",
    "as_text",
    "check",
    "run",
]
