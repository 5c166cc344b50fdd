"""The cells of a table: each a command line, composed once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reattend.config import check_run, compose, read
from reattend.config.groups import group_defaults, members
from reattend.config.revisions import revisions
from reattend.config.schema import RunConfig
from reattend.errors import ReattendError
from reattend.tables.table import Table


@dataclass(frozen=True)
class Cell:
    """A row and a column of a table.

    Attributes:
        row, column: their names.
        overrides: what `train.py` takes to run it, without the seed.
        config: composed from these, at seed 0; None if that is not possible.
        problem: why it is not: the task does not exist yet, or the pair is refused.
        revisions: of the parts of `config`.
    """

    row: str
    column: str
    overrides: tuple[str, ...]
    config: RunConfig | None
    problem: str = ""
    revisions: Mapping[str, int] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that runs it at one seed."""
        return " ".join(["python train.py", *map(quoted, self.overrides)])


def compose_cells(table: Table, rows: Iterable[str], columns: Iterable[str], extra: Sequence[str] = ()) -> list[Cell]:
    """The cells of `rows` and `columns`, row by row.

    Args:
        table: the table.
        rows: some of its rows; those of `read_request`.
        columns: some of its columns.
        extra: overrides for all cells, such as "scale=quick"; they win over the table's own.
    """
    return [compose_cell(row, column, cell_overrides(table, row, column, extra)) for row in rows for column in columns]


def cell_overrides(table: Table, row: str, column: str, extra: Sequence[str]) -> tuple[str, ...]:
    """What `train.py` takes to run a cell, without the seed."""
    return (*table.overrides, *table.rows[row].overrides, *table.columns[column].overrides, *extra)


def compose_cell(row: str, column: str, overrides: tuple[str, ...]) -> Cell:
    """The cell, with its configuration or why there is none."""
    missing = [override for override in overrides if not _exists(override)]
    if missing:
        return Cell(row, column, overrides, None, f"{', '.join(missing)} does not exist yet")
    try:
        config = read(compose(list(overrides)))
        check_run(config)
        return Cell(row, column, overrides, config, revisions=revisions(config))
    except ReattendError as error:
        return Cell(row, column, overrides, None, str(error))


def _exists(override: str) -> bool:
    """False for the choice of a group's member that is not there."""
    group, _, member = override.partition("=")
    return group not in group_defaults() or member in members(group) or member == "null"


def quoted(override: str) -> str:
    """An override as a shell takes it."""
    return f"'{override}'" if set(override) & set('[]{}()*?$&|;<> "\\') else override
