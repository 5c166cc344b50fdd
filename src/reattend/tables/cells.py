"""The cells of a table: each a command line, composed once."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reattend.config import check_run, compose, locate, read
from reattend.config.problems import refuse
from reattend.config.reach import overrides_read
from reattend.config.revisions import revisions
from reattend.config.schema import RunConfig
from reattend.data.source import source_class
from reattend.errors import ReattendError, nearest
from reattend.tables.table import OF_A_RUN, Table, load_table, table_names
from reattend.tables.table_check import exists


@dataclass(frozen=True)
class Cell:
    """A row and a column of a table.

    Attributes:
        row, column: their names.
        overrides: what `train.py` takes to run it, without the seed.
        config: composed from these, at seed 0; None if that is not possible.
        problem: why it is not: the task does not exist yet, or the pair is refused.
        revisions: of the parts of `config`.
        metrics: what a result of it has, besides `OF_A_RUN`.
    """

    row: str
    column: str
    overrides: tuple[str, ...]
    config: RunConfig | None
    problem: str = ""
    revisions: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that runs it at one seed."""
        return train_line(self.overrides)


def train_line(overrides: Sequence[str], flags: Sequence[str] = ()) -> str:
    """The command line of a run, without overrides that it does not read: they are for other cells."""
    return " ".join(["python train.py", *flags, *map(shlex.quote, overrides_read(overrides))])


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
    missing = [override for override in overrides if not exists(override)]
    if missing:
        return Cell(row, column, overrides, None, f"{', '.join(missing)} does not exist yet")
    try:
        config = read(compose(list(overrides)))
        check_run(config)
        return Cell(row, column, overrides, config, revisions=revisions(config), metrics=_metrics(config))
    except ReattendError as error:
        return Cell(row, column, overrides, None, str(error))


def _metrics(config: RunConfig) -> tuple[str, ...]:
    watched = (f"val/{config.task.metric}",) if config.protocol.selection == "validation" else ()
    forms = ["test", *source_class(config.task.data_target).further_tests(config)]
    suffixes = [""] if config.recipe.ema_decay is None else ["", "_ema"]
    task = locate(config.task.target)
    tested = [f"{form}/{name}{suffix}" for form in forms for name in task.higher_is_better for suffix in suffixes]
    return (*tested, *(f"train/{name}" for name in task.train_metrics()), *watched)


def check_metrics(table: Table, cells: Sequence[Cell]) -> list[str]:
    """Which values of the table no cell that can run will have, with the nearest metric that one will have.

    Raises:
        ReattendError: the cells will have none of the values, and nothing is awaited: no task that does not exist yet,
            no metric that a table of ours names.
    """
    measured = sorted({metric for cell in cells for metric in cell.metrics} | set(OF_A_RUN))
    missing = {name: value.metric for name, value in table.values.items() if value.metric not in measured}
    told = [
        f"values.{name}.metric: no run here has {metric}.{nearest(metric, measured)}"
        for name, metric in missing.items()
        if any(cell.metrics for cell in cells)
    ]
    if told and len(told) == len(table.values) and all(cell.config is not None for cell in cells):
        ours = {value.metric for name in table_names() for value in load_table(name).values.values()}
        if not ours.issuperset(missing.values()):
            refuse(told, f"Metrics of these runs: {', '.join(measured)}.")
    return told
