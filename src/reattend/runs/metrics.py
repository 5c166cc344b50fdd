"""`metrics.csv`: one metric a row, appended while a run goes on."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reattend.errors import ReattendError
from reattend.runs.files import write_bytes

FILE = "metrics.csv"
COLUMNS = ["epoch", "step", "metric", "value"]


@dataclass(frozen=True)
class MetricRow:
    """`value` of `metric` after `step` updates, in or after epoch `epoch`."""

    epoch: int
    step: int
    metric: str
    value: float


class MetricsFile:
    """The metrics of a run that is going on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Adds a row per metric; values keep every digit.

        After a kill the last line may be cut off: `cut_back` comes before going on.

        Raises:
            ReattendError: the file cannot be written.
        """
        rows = _to_csv([MetricRow(epoch, step, name, float(value)) for name, value in metrics.items()])
        try:
            with open(self.path, "ab", buffering=0) as file:
                file.write((b"" if file.tell() else _header()) + rows)
        except OSError as error:
            raise ReattendError(f"{self.path} cannot be written: {error.strerror}") from error

    def cut_back(self, step: int) -> None:
        """Drops the rows after `step`, and a line that a kill cut off, so that a resumed run writes them again.

        Without a checkpoint a run begins before its first step: `cut_back(-1)`.
        """
        if self.path.exists():
            rows = [row for row in read_metrics(self.path) if row.step <= step]
            write_bytes(self.path, _header() + _to_csv(rows))


def read_metrics(path: Path) -> list[MetricRow]:
    """All whole rows; a last line without its end is left out.

    Raises:
        ReattendError: a line is malformed, or the file is missing.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise ReattendError(f"{path} cannot be read: {error.strerror}") from error
    return list(_rows(path, text[: text.rfind("\n") + 1]))


def _rows(path: Path, text: str) -> Iterator[MetricRow]:
    lines = csv.reader(io.StringIO(text, newline=""))
    for number, line in enumerate(lines, start=1):
        if number == 1 and line == COLUMNS:
            continue
        try:
            epoch, step, metric, value = line
            row = MetricRow(int(epoch), int(step), metric, float(value))
        except ValueError:
            raise ReattendError(
                f"{path}, line {number}: expected {','.join(COLUMNS)}, found {','.join(line)!r}. "
                "Delete the run's folder to start it anew."
            ) from None
        yield row


def _header() -> bytes:
    return (",".join(COLUMNS) + "\n").encode()


def _to_csv(rows: list[MetricRow]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([row.epoch, row.step, row.metric, repr(row.value)] for row in rows)
    return text.getvalue().encode()
