"""A published table as a YAML: rows, columns, metric, and the numbers that the paper printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from omegaconf import OmegaConf

from reattend.config import config_dir
from reattend.config.binding import bind_dataclass
from reattend.config.problems import refuse
from reattend.errors import ReattendError, nearest


@dataclass(frozen=True)
class Setting:
    """A row or a column: the overrides that it adds to a command line."""

    overrides: list[str]


@dataclass(frozen=True)
class PublishedRow:
    """Numbers of one row by column; `unconfirmed` ones were not read in a source and take no part in a verdict."""

    certainty: Literal["read", "unconfirmed"]
    source: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Elsewhere:
    """A number for the same cell from another code base, with another recipe."""

    row: str
    column: str
    value: float
    source: str


@dataclass(frozen=True)
class Table:
    """`metric` is a fraction in result files when `unit` is "%"."""

    title: str
    paper: str
    metric: str
    unit: str
    average: str
    rows: Mapping[str, Setting]
    columns: Mapping[str, Setting]
    published: Mapping[str, PublishedRow] = field(default_factory=dict)
    elsewhere: list[Elsewhere] = field(default_factory=list)

    @property
    def factor(self) -> float:
        """From a result file's number to the table's."""
        return 100.0 if self.unit == "%" else 1.0


def table_names() -> list[str]:
    """All tables, such as "primal_dual/table1"."""
    folder = config_dir() / "table"
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def load_table(name: str) -> Table:
    """The table `name`.

    Raises:
        ReattendError: there is none of that name, or its YAML is not a table.
    """
    if name not in table_names():
        raise ReattendError(
            f"There is no table '{name}'.{nearest(name, table_names())} All: {', '.join(table_names())}."
        )
    path = config_dir() / "table" / f"{name}.yaml"
    content = OmegaConf.to_container(OmegaConf.load(path))
    problems: list[str] = []
    table = bind_dataclass(Table, content, f"table/{name}", problems)
    refuse(problems, "Tables: python scripts/list.py table")
    assert isinstance(table, Table)
    return table
