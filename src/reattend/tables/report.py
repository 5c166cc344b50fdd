"""A table's results as text, with the published numbers beside them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable

from reattend.config.groups import group_defaults, members
from reattend.runs.result import Result
from reattend.tables.results import Cell, collect
from reattend.tables.table import Table

RULES = {"last": "last epoch", "best_on_validation": "best on validation", "best_on_test": "best on test"}


@dataclass(frozen=True)
class Report:
    """One rich table for each column with results, and remarks: what is missing and why, what numbers mean."""

    tables: list[RichTable]
    remarks: list[str]


def report(table: Table, rows: Sequence[str], columns: Sequence[str], extra: Sequence[str]) -> Report:
    """What the finished runs say of the table's cells.

    Args:
        table: the published table.
        rows: to be shown; names of attentions that the table lacks may be among them.
        columns: to be shown.
        extra: overrides for the whole table.
    """
    tables, remarks, missing = [], [], []
    for column in columns:
        if not _exists(table.columns[column].overrides):
            missing.append(f"{column}: {' '.join(table.columns[column].overrides)} does not exist yet")
            continue
        cells = [collect(table, row, column, extra) for row in rows]
        remarks += [told for cell in cells for told in cell.damaged]
        if not any(cell.results for cell in cells):
            missing.append(f"{column}: no finished run; {_command(cells[0])}")
            continue
        tables.append(_column_table(table, column, cells))
        remarks += [f"{column}, {cell.row}: no finished run; {_command(cell)}" for cell in cells if not cell.results]
        remarks += _stamps([result for cell in cells for result in cell.results])
    remarks += _sources(table, columns)
    return Report(tables, list(dict.fromkeys(remarks + missing)))


def _exists(overrides: Sequence[str]) -> bool:
    """Whether the members that a column chooses are there."""
    choices = dict(override.split("=", 1) for override in overrides)
    return all(choices[group] in members(group) for group in choices if group in group_defaults())


def _column_table(table: Table, column: str, cells: Sequence[Cell]) -> RichTable:
    shown = RichTable(title=f"{column}: {table.metric} ({table.unit})\n{table.paper}", title_justify="left")
    rules = [rule for rule in RULES if any(rule in result.metrics for cell in cells for result in cell.results)]
    shown.add_column("attention")
    for rule in rules:
        shown.add_column(f"{RULES[rule]}, mean ± std (n)", justify="right", no_wrap=True)
    shown.add_column("published", justify="right")
    for cell in cells:
        values = [_mean_and_spread(table, cell, rule) for rule in rules]
        shown.add_row(cell.row, *values, _published(table, cell.row, column))
    return shown


def _mean_and_spread(table: Table, cell: Cell, rule: str) -> str:
    values = [
        table.factor * result.metrics[rule].metrics[f"test/{table.metric}"]
        for result in cell.results
        if rule in result.metrics
    ]
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread} ({len(values)})"


def _published(table: Table, row: str, column: str) -> str:
    known = table.published.get(row)
    if known is None or column not in known.values:
        return ""
    return f"{known.values[column]:.2f}" + (" (unconfirmed)" if known.certainty == "unconfirmed" else "")


def _stamps(results: Sequence[Result]) -> list[str]:
    found = []
    if any(result.scale == "quick" for result in results):
        found.append("scale=quick: not comparable with published numbers, which only stand beside it.")
    if any(result.data == "standin" for result in results):
        found.append("data=standin: generated data, not comparable with anything published.")
    if any(result.protocol == "published" for result in results):
        found.append("protocol=published: 'best on test' selects the epoch on test, as the followed code does.")
    names = sorted({f"fidelity={result.fidelity['name']}" for result in results})
    return [*found, f"{', '.join(names)}; {len(results)} runs; commits {', '.join(_commits(results))}"]


def _commits(results: Sequence[Result]) -> list[str]:
    return sorted({(result.git_commit or "unknown")[:12] for result in results})


def _sources(table: Table, columns: Sequence[str]) -> list[str]:
    sources = [
        f"published {row}: {known.certainty}, {known.source}"
        for row, known in table.published.items()
        if set(known.values) & set(columns)
    ]
    others = [
        f"elsewhere, {e.row} on {e.column}: {e.value} ({e.source})" for e in table.elsewhere if e.column in columns
    ]
    return sources + others


def _command(cell: Cell) -> str:
    return f"python train.py -m search=seeds {' '.join(cell.overrides)}"
