"""ListOps files to token ids, and answers computed anew from the tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reattend.data.lra.listops import OPERATORS, median, sum_modulo
from reattend.errors import ReattendError, nearest

PADDING = 0
VOCABULARY = {
    **{str(digit): digit + 1 for digit in range(10)},
    **{f"[{name}": 11 + index for index, name in enumerate(OPERATORS)},
    "]": 15,
}
BRACKETS = ("kept", "dropped")

_CHUNK = 1 << 25
# One letter stands for each operator: the one that no other operator has.
_IDS = {**{str(digit): digit + 1 for digit in range(10)}, "I": 11, "A": 12, "E": 13, "S": 14, "]": 15}
_CLASSES = (" ", "()", "[", "]", "0123456789", "M", "I", "A", "E", "N", "X", "D", "S", "\t", "\n")
_MAY_FOLLOW = {
    " ": "([]0",
    "(": " \t",
    "[": "MS",
    "]": " \t",
    "0": " \t\n",
    "M": "IAE ",
    "I": "N",
    "A": "X",
    "E": "D",
    "S": "M",
    "N": " ",
    "X": " ",
    "D": " ",
    "\t": "0",
    "\n": "([0",
}


@dataclass(frozen=True)
class Samples:
    """Tokens of all samples joined, uint8; sample i is tokens[offsets[i]:offsets[i + 1]] and has labels[i]."""

    tokens: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


def read_listops(path: str | Path, brackets: str = "kept") -> Samples:
    """Reads a file of the original's form: a header line "Source<tab>Target", then text and answer in each line.

    Tokens are the words between spaces. Parentheses are left out always, as they say nothing that brackets do not.
    `brackets="kept"` is the reading of the corrected LRA pipeline; `"dropped"` leaves "]" out too, as the tokeniser
    before that correction did (it kept letters and digits alone): then an expression no longer says where an
    operator's arguments end, and published numbers near 37 % come from that reading.

    Ids: 0 padding, 1 to 10 the digits 0 to 9, 11 MIN, 12 MAX, 13 MED, 14 SM, 15 the closing bracket.

    Raises:
        ReattendError: the file is missing, has no such header, or a line is not of that form (named with its number).
    """
    if brackets not in BRACKETS:
        raise ReattendError(
            f"Unknown brackets='{brackets}', choose from {', '.join(BRACKETS)}.{nearest(brackets, BRACKETS)}"
        )
    path = Path(path)
    parts = [(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    try:
        with path.open("rb") as file:
            if file.readline().rstrip(b"\r\n") != b"Source\tTarget":
                raise ReattendError(f"{path}: the first line must be 'Source', a tab and 'Target'.")
            line, rest = 2, b""
            while chunk := file.read(_CHUNK):
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                if newline:
                    parts.append(_tokenise(whole, path, line))
                    line += len(parts[-1][2])
    except OSError as error:
        raise ReattendError(f"{path} cannot be read: {error.strerror or error}.") from error
    if rest:
        raise ReattendError(f"{path}: line {line} has no end: the file is cut off.")
    joined, lengths, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if brackets == "dropped":
        keep = joined != VOCABULARY["]"]
        offsets = np.concatenate([[0], np.cumsum(keep, dtype=np.int64)])[offsets]
        joined = joined[keep]
    return Samples(joined, offsets, labels)


def check_answers(samples: Samples, path: str | Path) -> None:
    """Evaluates every sample with a stack over its tokens and compares with its label.

    Args:
        samples: read with `brackets="kept"`.
        path: the file, for the message.

    Raises:
        ReattendError: an expression is not whole, or its answer is another; the line is named.
    """
    tokens = samples.tokens.tobytes()
    for index, label in enumerate(samples.labels.tolist()):
        value = evaluate(tokens[samples.offsets[index] : samples.offsets[index + 1]])
        if value != label:
            found = "is not a whole expression" if value is None else f"has the value {value}, not {label}"
            raise ReattendError(
                f"{path}: the expression in line {index + 2} {found}: the file is damaged. Get or generate it again."
            )


def evaluate(tokens: bytes) -> int | None:
    """Value of an expression in ids with closing brackets, or None if it is not one whole expression."""
    outer: list[list[int]] = []
    operators: list[int] = []
    values: list[int] = []
    close = VOCABULARY["]"]
    for token in tokens:
        if token <= 10:
            values.append(token - 1)
        elif token < close:
            operators.append(token)
            outer.append(values)
            values = []
        else:
            if not operators or not values:
                return None
            value = _VALUE[operators.pop()](values)
            values = outer.pop()
            values.append(value)
    return values[0] if not operators and len(values) == 1 else None


_VALUE: dict[int, Callable[[list[int]], int]] = {11: min, 12: max, 13: median, 14: sum_modulo}


def _tables() -> tuple[bytes, bytes, bytes]:
    ids, classes, may_follow = bytearray(256), bytearray(256), bytearray(256)
    for character, token in _IDS.items():
        ids[ord(character)] = token
    for number, characters in enumerate(_CLASSES, start=1):
        for character in characters:
            classes[ord(character)] = number
    for character, followers in _MAY_FOLLOW.items():
        for follower in followers:
            may_follow[classes[ord(character)] << 4 | classes[ord(follower)]] = 1
    return bytes(ids), bytes(classes), bytes(may_follow)


_ID_OF, _CLASS_OF, _MAY_FOLLOW_OF = _tables()


def _tokenise(
    text: bytes, path: Path, line: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    text = b"\n" + text.replace(b"\r\n", b"\n").removesuffix(b"\r") + b"\n"
    data = np.frombuffer(text, np.uint8)
    # bytes.translate() looks up a byte in a nanosecond; indexing a NumPy table widens every index to 64 bits first.
    classes = np.frombuffer(text.translate(_CLASS_OF), np.uint8)
    allowed = (classes[:-1] << 4 | classes[1:]).tobytes().translate(_MAY_FOLLOW_OF)
    ends = np.flatnonzero(data == ord("\n"))
    if (wrong := allowed.find(0)) >= 0:
        raise _bad_line(path, line + int(np.searchsorted(ends, wrong, side="right")) - 1)
    tabs = np.flatnonzero(data == ord("\t"))
    lines = len(ends) - 1
    if len(tabs) != lines or (tabs != ends[1:] - 2).any():
        first = next(i for i in range(lines) if i >= len(tabs) or tabs[i] != ends[i + 1] - 2)
        raise _bad_line(path, line + first)
    ids = np.frombuffer(bytearray(text.translate(_ID_OF)), np.uint8)
    labels = ids[tabs + 1].astype(np.int64) - 1
    ids[tabs + 1] = PADDING
    places = np.flatnonzero(ids)
    tokens = ids[places]
    # The pairs alone let "[M " and "[SMIN" pass.
    if np.count_nonzero((tokens > 10) & (tokens < VOCABULARY["]"])) != text.count(b"["):
        raise _bad_operator(path, text, line)
    return tokens, np.diff(np.searchsorted(places, ends)), labels


def _bad_line(path: Path, line: int) -> ReattendError:
    return ReattendError(
        f"{path}: line {line} is not a ListOps sample: digits, ( ) ] and [MIN [MAX [MED [SM with one space between, "
        "then a tab and the answer, one digit."
    )


def _bad_operator(path: Path, text: bytes, line: int) -> ReattendError:
    for number, source in enumerate(text.split(b"\n")[1:]):
        operators = [word for word in source.split() if word.startswith(b"[")]
        if not {word.decode() for word in operators} <= VOCABULARY.keys():
            return _bad_line(path, line + number)
    return ReattendError(f"{path}: operators from line {line} on cannot be read.")
