"""The commands that a page gives: what runs its missing runs, and what makes it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from reattend.tables.cells import train_line
from reattend.tables.ladder import base_rows
from reattend.tables.request import Request
from reattend.tables.runs import TableRun
from reattend.tables.table import load_table


def train_command(runs: Sequence[TableRun]) -> str:
    """The `train.py` line for runs that differ in their seed only."""
    if len(runs) == 1:
        return runs[0].command
    seeds = ",".join(str(run.seed) for run in runs)
    return f"{train_line(runs[0].overrides[:-1], ['-m'])} seed={seeds}"


def reproduce_command(request: Request, retries: int = 0) -> str:
    """Runs what the page lacks; `retries` where runs have failed so often that they are not tried again by themselves.

    Args:
        request: what the page is of.
        retries: how often a run may be tried again; 0 leaves it to the command.
    """
    words = [f"table={request.name}", *selection(request), *request.extra]
    return _command("reproduce", [*words, *([f"retries={retries}"] if retries else [])])


def report_command(request: Request) -> str:
    """Makes the page again."""
    options = [f"{key}={request.options[key]}" for key in ("to", "published") if key in request.options]
    return _command("report", [f"table={request.name}", *selection(request), *request.extra, *options])


def selection(request: Request) -> list[str]:
    """What is wanted otherwise than the whole table: rows, columns, seeds, rows of one's own, a ladder."""
    known = load_table(request.name)
    rows = {row: request.table.rows[row] for row in request.rows}
    is_ladder = request.options.get("ladder") == "true"
    if is_ladder:
        rows = base_rows(rows)
    words = []
    if list(rows) != list(known.rows):
        words.append(f"rows={','.join(rows)}")
    if request.columns != tuple(known.columns):
        words.append(f"columns={','.join(request.columns)}")
    for row, setting in rows.items():
        by_name = [[f"attention={row}"], ["attention=custom", f"attention.target={row}"]]
        if setting.overrides not in ([known.rows[row].overrides] if row in known.rows else by_name):
            words.append(f"row.{row}={' '.join(setting.overrides)}")
    if len(request.seeds) != known.seeds:
        words.append(f"seeds={len(request.seeds)}")
    return [*words, *(["ladder=true"] if is_ladder else [])]


def _command(script: str, words: Sequence[str]) -> str:
    return " ".join([f"python scripts/{script}.py", *map(shlex.quote, words)])
