"""The header of the `.ts` text format: tags up to `@data`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from reattend.data.zipped import ZipMember
from reattend.errors import ReattendError, nearest

TAGS = (
    "@problemName",
    "@timeStamps",
    "@missing",
    "@univariate",
    "@dimensions",
    "@equalLength",
    "@seriesLength",
    "@classLabel",
    "@targetLabel",
    "@data",
)


class MalformedFileError(ReattendError):
    """A `.ts` file departs from the format; the message names file, line, what was expected and what was found."""


@dataclass
class Header:
    """What the tags say; `spelling` gives a declared class label from its lower-case form."""

    problem_name: str = ""
    univariate: bool = False
    dimensions: int | None = None
    equal_length: bool = False
    series_length: int | None = None
    class_labels: tuple[str, ...] = ()
    regression: bool = False
    spelling: dict[str, str] = field(default_factory=dict)


class Location:
    """Where reading stands: a file and a line, from 1."""

    def __init__(self, path: Path | ZipMember) -> None:
        self.path = path
        self.line = 0

    def fail(self, expected: str, found: str) -> NoReturn:
        """Raises a `MalformedFileError` about this line."""
        raise MalformedFileError(f"{self.path}, line {self.line}: expected {expected}, found {found}.")


def read_header(lines: Iterable[str], at: Location) -> Header:
    """Takes lines up to and including `@data`, where it leaves `at`.

    Raises:
        MalformedFileError: a tag is unknown or has no valid value, or there is no `@data`.
    """
    header = Header()
    number = 0
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0][0] in "#%":
            continue
        at.line = number
        tag, arguments = words[0].lower(), words[1:]
        if not tag.startswith("@"):
            at.fail("a tag such as @problemName, or @data before the first case", shown(line))
        if tag == "@data":
            if not (header.class_labels or header.regression):
                at.fail("@classLabel true <labels> or @targetLabel true before @data", "neither")
            return header
        if tag not in _READERS:
            at.fail(f"one of {' '.join(TAGS)}", f"{words[0]}.{nearest(words[0], TAGS)}".rstrip("."))
        _READERS[tag](header, arguments, at)
    if not at.line:
        raise MalformedFileError(f"{at.path} is empty: expected a .ts file with @data and at least one case.")
    raise MalformedFileError(f"{at.path}: expected a line @data, found none in {number} lines.")


def _true(arguments: Sequence[str], at: Location) -> bool:
    word = arguments[0].lower() if arguments else ""
    if word not in ("true", "false"):
        at.fail("true or false", shown(word))
    return word == "true"


def _positive(arguments: Sequence[str], at: Location) -> int:
    if not (arguments and arguments[0].isdecimal() and int(arguments[0]) > 0):
        at.fail("a positive whole number", shown(" ".join(arguments)))
    return int(arguments[0])


def _problem_name(header: Header, arguments: Sequence[str], at: Location) -> None:
    header.problem_name = " ".join(arguments)


def _time_stamps(header: Header, arguments: Sequence[str], at: Location) -> None:
    if _true(arguments, at):
        at.fail("@timeStamps false (values without time stamps)", "true")


def _missing(header: Header, arguments: Sequence[str], at: Location) -> None:
    _true(arguments, at)


def _univariate(header: Header, arguments: Sequence[str], at: Location) -> None:
    header.univariate = _true(arguments, at)


def _dimensions(header: Header, arguments: Sequence[str], at: Location) -> None:
    header.dimensions = _positive(arguments, at)


def _equal_length(header: Header, arguments: Sequence[str], at: Location) -> None:
    header.equal_length = _true(arguments, at)


def _series_length(header: Header, arguments: Sequence[str], at: Location) -> None:
    header.series_length = _positive(arguments, at)


def _class_labels(header: Header, arguments: Sequence[str], at: Location) -> None:
    if not _true(arguments, at):
        return
    if len(arguments) < 2:
        at.fail("the labels after @classLabel true", "none")
    header.class_labels = tuple(arguments[1:])
    header.spelling = {label.lower(): label for label in header.class_labels}
    if len(header.spelling) < len(header.class_labels):
        at.fail("class labels that differ", shown(" ".join(header.class_labels)))


def _target_label(header: Header, arguments: Sequence[str], at: Location) -> None:
    header.regression = _true(arguments, at)


_READERS: dict[str, Callable[[Header, Sequence[str], Location], None]] = {
    "@problemname": _problem_name,
    "@timestamps": _time_stamps,
    "@missing": _missing,
    "@univariate": _univariate,
    "@dimensions": _dimensions,
    "@dimension": _dimensions,  # public files have either
    "@equallength": _equal_length,
    "@serieslength": _series_length,
    "@classlabel": _class_labels,
    "@targetlabel": _target_label,
}


def shown(text: str) -> str:
    """`text` in quotes, shortened, for a message."""
    text = text.strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")


def count(number: int, noun: str) -> str:
    """Such as "1 channel" or "3 channels"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
