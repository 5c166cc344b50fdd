"""Training curves of a table's finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from reattend.analysis.curves import curves
from reattend.config import ConfigError, compose, read
from reattend.errors import ReattendError
from reattend.runs.identity import run_folder
from reattend.tables.results import Cell, collect
from reattend.tables.table import Table


def table_curves(table: Table, rows: Sequence[str], columns: Sequence[str], extra: Sequence[str]) -> Figure:
    """Training loss and the table's metric against the epoch, for each column that has finished runs.

    Args:
        table: whose runs are shown.
        rows: as in `report`.
        columns: as in `report`.
        extra: overrides for the whole table.

    Raises:
        ReattendError: no cell has a finished run, or the metrics of one are missing or malformed.
    """
    runs = {}
    for column in columns:
        try:
            cells = [collect(table, row, column, extra) for row in rows]
        except ConfigError:
            continue  # A task that does not exist yet, as the report says.
        if any(cell.results for cell in cells):
            runs[column] = {cell.row: _folders(cell) for cell in cells}
    if not runs:
        raise ReattendError("There are no curves to draw: no run of the table is finished.")
    unit = {"unit": table.unit, "factor": table.factor}
    return curves(runs, metric=table.metric, title=table.title, **unit)  # type: ignore[arg-type]


def _folders(cell: Cell) -> list[Path]:
    outputs = read(compose(list(cell.overrides))).outputs
    return [run_folder(outputs, result.config, result.fingerprint) for result in cell.results]
