"""The command `scripts/report.py`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from reattend.analysis.figures import check_figure_file, write_figure
from reattend.config import check_overrides, normalise_overrides
from reattend.errors import ReattendError, nearest
from reattend.tables.curves import table_curves
from reattend.tables.report import report
from reattend.tables.table import load_table, table_names


def main(arguments: Sequence[str]) -> None:
    """Prints the report, and with `curves=FILE.svg` draws the training curves.

    `table=`, `rows=`, `columns=` and `curves=` are its own, everything else is an override of the runs.
    """
    try:
        _print(arguments)
    except ReattendError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def _print(arguments: Sequence[str]) -> None:
    own = {"table", "rows", "columns", "curves"}
    pairs = [argument.partition("=") for argument in arguments]
    chosen = {key: value for key, _, value in pairs if key in own}
    rest = [argument for argument in arguments if argument.partition("=")[0] not in own]
    check_overrides(rest)
    extra = normalise_overrides(rest)
    if "table" not in chosen:
        raise ReattendError(f"Which table? table=<name> with one of: {', '.join(table_names())}.")
    table = load_table(chosen["table"])
    rows = chosen["rows"].split(",") if "rows" in chosen else list(table.rows)
    columns = _columns(table.columns, chosen.get("columns"))
    if "curves" in chosen:
        check_figure_file("curves", Path(chosen["curves"]))
    made = report(table, rows, columns, extra)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for shown in made.tables:
        console.print(shown)
    for remark in made.remarks:
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
    if "curves" in chosen:
        write_figure(Path(chosen["curves"]), table_curves(table, rows, columns, extra))


def _columns(known: Mapping[str, object], asked: str | None) -> list[str]:
    if asked is None:
        return list(known)
    for column in asked.split(","):
        if column not in known:
            raise ReattendError(
                f"The table has no column '{column}'.{nearest(column, known)} It has: {', '.join(known)}."
            )
    return asked.split(",")
