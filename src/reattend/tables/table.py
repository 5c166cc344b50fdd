"""A published table as a YAML: rows, columns, values, the numbers that the paper printed and what it claims."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from reattend.config import config_dir
from reattend.config.binding import bind_dataclass
from reattend.config.limits import Count, NonNegativeInt, Positive
from reattend.config.loader import load_file
from reattend.config.problems import refuse
from reattend.errors import ReattendError, nearest
from reattend.tables.table_check import contradictions, exists, mistyped

Certainty = Literal["read", "unconfirmed"]

# From a result file's number to the unit of a table.
FACTORS = {"%": 100.0, "GB": 1e-9, "MB": 1e-6, "M": 1e-6, "GFLOP": 1e-9, "TFLOP": 1e-12, "s/1K steps": 1000.0}

# Figures of a whole run; any other metric is one of `result.json`'s, such as "test/accuracy".
OF_A_DEVICE = ("peak_memory", "seconds", "seconds_per_epoch", "seconds_per_step", "steps_per_second")
OF_A_RUN = ("parameters", "flops", "training_flops", *OF_A_DEVICE)


@dataclass(frozen=True)
class Setting:
    """A row or a column: what it is called and the overrides that it adds to a command line.

    `at` is where a row lies on the table's sweep.
    """

    overrides: list[str]
    label: str | None = None
    at: float | None = None


@dataclass(frozen=True)
class Value:
    """What a table prints of a run.

    Attributes:
        metric: of the selected epoch, such as "test/accuracy", or one of `OF_A_RUN`.
        better: whether higher or lower is.
        unit: "%" stands for a fraction in result files; "GB" and the like for bytes, numbers and operations.
        digits: after the point.
        margin: two values of this column that differ by less are equal for all purposes, in its unit; with
            `relative_to` it is relative, 0.1 means ratios within a factor of 1.1 either way. Without one there is no
            verdict on its cells.
        relative_to: for figures that depend on the hardware, the row by whose value on the same device all others are
            divided before they are compared.
        selection: the epoch; `protocol` takes the protocol's own rule, `last` the last one.
        label: how a page names it.
    """

    metric: str
    better: Literal["higher", "lower"]
    unit: str = ""
    digits: NonNegativeInt = 2
    margin: Positive | None = None
    relative_to: str | None = None
    selection: Literal["protocol", "last"] = "protocol"
    label: str | None = None

    @property
    def of_selected_epoch(self) -> bool:
        """Whether it is a metric of the epoch that the protocol selects."""
        return self.selection == "protocol" and self.metric not in OF_A_RUN

    @property
    def factor(self) -> float:
        """From a result file's number to the table's."""
        return FACTORS.get(self.unit, 1.0)


@dataclass(frozen=True)
class PublishedNumbers:
    """Numbers of one source for one value: row -> column -> number, or [mean, standard deviation].

    `unconfirmed` ones were not read in a source and take no part in a verdict. `runs` is how many runs each number is
    the mean of, where that is known.
    """

    value: str
    certainty: Certainty
    source: str
    numbers: Mapping[str, Mapping[str, float | list[float]]]
    runs: Count | None = None


@dataclass(frozen=True)
class Published:
    """One published number; `spread` is its standard deviation over `runs` runs."""

    number: float
    spread: float | None
    runs: int | None
    certainty: Certainty
    source: str


@dataclass(frozen=True)
class Place:
    """A row, column and value of a table; the column may be its mean."""

    row: str
    column: str
    value: str


@dataclass(frozen=True)
class Claim:
    """A statement of the paper about two places of the table.

    It holds if left - right, or left / right, is at least `at_least` and at most `at_most`, in the value's unit.

    Attributes:
        text: the statement, in our words.
        certainty, source: where it is read.
        left, right: what is compared.
        by: the comparison.
        at_least, at_most: its bounds; one may be missing.
    """

    text: str
    certainty: Certainty
    source: str
    left: Place
    right: Place
    by: Literal["difference", "ratio"] = "difference"
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Table:
    """A published table, or one of our own.

    Attributes:
        title: what is compared on what.
        paper: whose, with its number there; "" for a table of one's own.
        average: over what the paper's numbers are means, in words.
        seeds: how many each cell is run with: 0, 1, ...
        values: what is printed of each cell, by name.
        rows, columns: by name; a cell runs with the overrides of the table, its row and its column, in this order.
        overrides: of all cells.
        mean: name of the column that holds the mean over all columns; None without one.
        published: numbers of the paper's own table.
        elsewhere: numbers of others for the same cells, to be looked at and not compared with.
        claims: by name.
        footnotes: what a reader has to know beside the numbers.
        sweep: what rows with an `at` vary, such as "window s"; a page draws each value along it.
    """

    title: str
    seeds: Count
    values: Mapping[str, Value]
    rows: Mapping[str, Setting]
    columns: Mapping[str, Setting]
    paper: str = ""
    average: str = ""
    overrides: list[str] = field(default_factory=list)
    mean: str | None = None
    published: list[PublishedNumbers] = field(default_factory=list)
    elsewhere: list[PublishedNumbers] = field(default_factory=list)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    footnotes: list[str] = field(default_factory=list)
    sweep: str = ""

    @property
    def all_columns(self) -> list[str]:
        """The columns and the mean."""
        return [*self.columns, *([self.mean] if self.mean else [])]

    @property
    def all_overrides(self) -> list[str]:
        """Of the table, its rows and its columns."""
        settings = [*self.rows.values(), *self.columns.values()]
        return [*self.overrides, *(override for setting in settings for override in setting.overrides)]

    def published_number(self, row: str, column: str, value: str) -> Published | None:
        """What the paper printed in a place, None if that is not known."""
        for block in self.published:
            number = block.numbers.get(row, {}).get(column) if block.value == value else None
            if number is not None:
                mean, spread = number if isinstance(number, list) else (number, None)
                return Published(mean, spread, block.runs, block.certainty, block.source)
        return None


def table_names() -> list[str]:
    """All tables, such as "primal_dual/table1"; table 2 comes before table 10."""
    folder = config_dir() / "table"
    names = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def load_table(name: str) -> Table:
    """The table `name`, or the one in a YAML file of that path.

    Raises:
        ReattendError: there is none of that name, or its YAML is not a table.
    """
    own = Path(name)
    if not name:
        raise ReattendError(f"table= is empty. Tables: {', '.join(table_names())}.")
    if own.suffix in (".yaml", ".yml"):
        if not own.is_file():
            beside = sorted(path.name for path in own.parent.glob("*.y*ml")) if own.parent.is_dir() else []
            raise ReattendError(
                f"There is no file {own}.{nearest(own.name, beside)} Tables of this project go by their names: python "
                "scripts/list.py table"
            )
        table = _read(own, name)
        if not all(map(exists, table.all_overrides)):
            awaited = {override for ours in map(load_table, table_names()) for override in ours.all_overrides}
            refuse(list(mistyped(table, awaited, name)))
        return table
    if name not in table_names():
        raise ReattendError(
            f"There is no table '{name}'.{nearest(name, table_names())} All: {', '.join(table_names())}; a file of "
            "your own is given by its path, table=my_table.yaml."
        )
    path = config_dir() / "table" / f"{name}.yaml"
    return _of_ours(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _of_ours(path: Path, changed: int) -> Table:
    """Read once for as long as the file does not change: a table of one's own is checked by all of ours."""
    return _read(path, path.relative_to(config_dir()).with_suffix("").as_posix())


def _read(path: Path, shown: str) -> Table:
    problems: list[str] = []
    table = bind_dataclass(Table, load_file(path), shown, problems)
    if isinstance(table, Table):
        problems += [f"{shown}.{problem}" for problem in contradictions(table)]
    refuse(problems, "Tables: python scripts/list.py table")
    assert isinstance(table, Table)
    return table
