"""Reader and writer of the `.ts` text format of the UEA, UCR and TSER time-series archives."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from reattend.data.ts_header import Header, Location, MalformedFileError, count, read_header, shown
from reattend.data.zipped import ZipMember
from reattend.errors import ReattendError

Series = NDArray[np.float64]


@dataclass(frozen=True)
class TimeSeriesFile:
    """The content of one `.ts` file.

    Attributes:
        path: the file.
        problem_name: what `@problemName` says, "" if it is absent.
        series: one array (channels, length) for each case; NaN where a value is missing.
        lines: line number of each case, from 1.
        class_labels: the declared classes in their order; empty for a regression file.
        labels: class of each case, spelt as declared; None for a regression file.
        targets: target of each case, (cases,); None for a classification file.
    """

    path: Path | ZipMember
    problem_name: str
    series: list[Series]
    lines: list[int]
    class_labels: tuple[str, ...]
    labels: list[str] | None
    targets: NDArray[np.float64] | None

    @property
    def num_channels(self) -> int:
        """Channels of every case."""
        return int(self.series[0].shape[0])


def read_ts(path: str | Path | ZipMember) -> TimeSeriesFile:
    """Reads a `.ts` file, line by line: its text is never in memory as a whole.

    Tags are matched in any case, and so are class labels (sktime's reader lowers both). Comments (`#`, in the header
    also `%`), empty lines, tabs, trailing blanks and either line end are allowed. A missing value is `NaN` or `?`.
    Cases may differ in length unless the header declares `@equalLength true`; the channels of one case may not.
    `@missing` is not relied on: values are looked at instead.

    Raises:
        ReattendError: the file cannot be read.
        MalformedFileError: the file departs from the format; where it ends in the middle of a case the message says so.
    """
    path = Path(path) if isinstance(path, str) else path
    try:
        # Comments of old files are not always UTF-8; in data a replaced character is refused as not numeric.
        with path.open("rb") as file:
            return _read(path, io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace"))
    except OSError as error:
        raise ReattendError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read(path: Path | ZipMember, lines: Iterator[str]) -> TimeSeriesFile:
    at = Location(path)
    header = read_header(lines, at)
    parse_label = _target if header.regression else _class_label
    series: list[Series] = []
    labels: list[str] = []
    targets: list[float] = []
    numbers: list[int] = []
    for number, raw in enumerate(lines, start=at.line + 1):
        line = raw.strip()
        if not line or line[0] == "#":
            continue
        at.line = number
        try:
            values, label = _case(line, header, at)
            parsed = parse_label(label, header, at)
        except MalformedFileError as error:
            if raw.endswith("\n"):
                raise
            raise MalformedFileError(
                f"{error} The file ends with this line and without a line end: it was probably cut off while it was "
                "fetched."
            ) from error
        series.append(values)
        if isinstance(parsed, str):
            labels.append(parsed)
        else:
            targets.append(parsed)
        numbers.append(at.line)
    if not series:
        raise MalformedFileError(f"{path}: expected at least one case after @data (line {at.line}), found none.")
    return TimeSeriesFile(
        path=path,
        problem_name=header.problem_name,
        series=series,
        lines=numbers,
        class_labels=header.class_labels,
        labels=None if header.regression else labels,
        targets=np.array(targets) if header.regression else None,
    )


def _case(line: str, header: Header, at: Location) -> tuple[Series, str]:
    """Splits a line into its values (channels, length) and its label."""
    text, _, label = line.rpartition(":")
    channels = text.split(":") if text else []
    if header.dimensions is None:
        header.dimensions = 1 if header.univariate else max(len(channels), 1)
    if len(channels) != header.dimensions:
        lacks_label = len(channels) + 1 == header.dimensions and "," in label
        at.fail(
            f"{count(header.dimensions, 'channel')} and a label, separated by ':'",
            f"{count(header.dimensions, 'channel')} and no label" if lacks_label else count(len(channels), "channel"),
        )
    length = channels[0].count(",") + 1
    for index, channel in enumerate(channels):
        if channel.count(",") + 1 != length:
            at.fail(
                f"channels of one length, {length} as in channel 1",
                f"{count(channel.count(',') + 1, 'value')} in channel {index + 1}",
            )
    if header.equal_length:
        expected = header.series_length = header.series_length or length
        if length != expected:
            at.fail(
                f"{count(expected, 'value')} per channel, as @equalLength true demands",
                f"{length} (write @equalLength false if the series do differ)",
            )
    flat = text.replace(":", ",")
    try:
        if "_" in flat:
            raise ValueError  # float() would read 1_0 as 10.
        values = np.array([float(value) for value in flat.replace("?", "nan").split(",")])
    except ValueError:
        _fail_at_value(channels, at)
    if np.isinf(values).any():
        _fail_at_value(channels, at)
    return values.reshape(len(channels), length), label.strip()


def _fail_at_value(channels: Sequence[str], at: Location) -> NoReturn:
    for c, channel in enumerate(channels):
        for position, value in enumerate(channel.split(",")):
            try:
                bad = "_" in value or np.isinf(float("nan" if value.strip() == "?" else value))
            except ValueError:
                bad = True
            if bad:
                at.fail("a finite number, NaN or ?", f"{shown(value)} at value {position + 1} of channel {c + 1}")
    raise AssertionError("unreachable: no value is wrong")


def _class_label(label: str, header: Header, at: Location) -> str:
    declared = header.spelling.get(label.lower())
    if declared is None:
        labels = " ".join(header.class_labels)
        at.fail(f"a label declared in @classLabel ({labels})", shown(label) if label else "an empty label")
    return declared


def _target(label: str, header: Header, at: Location) -> float:
    try:
        value = float(label)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        at.fail("a finite number as target", shown(label) if label else "an empty target")
    return value


def write_ts(
    path: str | Path,
    series: Sequence[Series],
    *,
    problem_name: str,
    labels: Sequence[str] | None = None,
    class_labels: Sequence[str] = (),
    targets: Sequence[float] | None = None,
) -> None:
    """Writes cases (channels, length) with class labels or regression targets, so that `read_ts` gives them back.

    Values are written in full; NaN is written as `?`.
    """
    lengths = {case.shape[1] for case in series}
    channels = series[0].shape[0]
    answers = [str(label) for label in labels] if labels is not None else [repr(float(t)) for t in targets or ()]
    header = [
        f"@problemName {problem_name}",
        "@timeStamps false",
        f"@missing {str(any(np.isnan(case).any() for case in series)).lower()}",
        f"@univariate {str(channels == 1).lower()}",
        f"@dimensions {channels}",
        f"@equalLength {str(len(lengths) == 1).lower()}",
        *([f"@seriesLength {lengths.pop()}"] if len(lengths) == 1 else []),
        f"@classLabel true {' '.join(class_labels)}" if labels is not None else "@targetLabel true",
        "@data",
    ]
    cases = [
        ":".join(
            [*(",".join("?" if value != value else repr(value) for value in row) for row in case.tolist()), answer]
        )
        for case, answer in zip(series, answers, strict=True)
    ]
    Path(path).write_text("\n".join([*header, *cases]) + "\n", encoding="utf-8", newline="\n")
