"""The command `scripts/report.py`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console

from reattend.config import check_overrides, normalise_overrides
from reattend.errors import ReattendError, nearest
from reattend.tables.report import report
from reattend.tables.table import load_table, table_names


def main(arguments: Sequence[str]) -> None:
    """Prints the report; `table=`, `rows=` and `columns=` are its own, everything else is an override of the runs."""
    try:
        _print(arguments)
    except ReattendError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def _print(arguments: Sequence[str]) -> None:
    own = {"table", "rows", "columns"}
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
    made = report(table, rows, columns, extra)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for shown in made.tables:
        console.print(shown)
    for remark in made.remarks:
        console.print(remark, highlight=False, markup=False, soft_wrap=True)


def _columns(known: Mapping[str, object], asked: str | None) -> list[str]:
    if asked is None:
        return list(known)
    for column in asked.split(","):
        if column not in known:
            raise ReattendError(
                f"The table has no column '{column}'.{nearest(column, known)} It has: {', '.join(known)}."
            )
    return asked.split(",")
