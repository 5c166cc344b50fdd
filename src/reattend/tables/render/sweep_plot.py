"""A value along the rows of a sweep, such as the size of a window, beside the curve that is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Drawing

from reattend.analysis.figures import OKABE_ITO
from reattend.tables.evidence import Measured
from reattend.tables.table import Table

_WIDTH, _HEIGHT = 5.0, 3.2  # inches; a panel


def places_of(table: Table, rows: Sequence[str]) -> dict[str, float]:
    """Where each of the rows that are part of the table's sweep lies on it, in the sweep's order."""
    found = {row: at for row in rows if (at := table.rows[row].at) is not None}
    return dict(sorted(found.items(), key=lambda place: place[1]))


def published_along(table: Table, column: str, value: str) -> dict[str, dict[str, float]]:
    """Published numbers of a column by source and row; those of other settings too, which say only their shape."""
    found: dict[str, dict[str, float]] = {}
    for block in (*table.published, *table.elsewhere):
        if block.value == value:
            for row, columns in block.numbers.items():
                if column in columns:
                    number = columns[column]
                    found.setdefault(block.source, {})[row] = number[0] if isinstance(number, list) else number
    return found


def along_sweep(
    table: Table, at: Mapping[str, float], cells: Mapping[str, Measured], column: str, value: str, axis: str
) -> Drawing | None:
    """Ours (mean ± standard deviation) in one panel and each source's numbers in one of its own, with its own scale.

    None with fewer than two rows of the sweep.
    """
    ours = {row: cells[row] for row in at if row in cells}
    if len(ours) < 2:
        return None
    known = {
        source: {row: numbers[row] for row in at if row in numbers}
        for source, numbers in published_along(table, column, value).items()
    }
    panels = {source: numbers for source, numbers in known.items() if len(numbers) > 1}
    drawing = Drawing(figsize=(_WIDTH * (1 + len(panels)), _HEIGHT), layout="constrained")
    first, *others = drawing.subplots(1, 1 + len(panels), squeeze=False)[0]
    means, spreads = [found.mean for found in ours.values()], [found.std or 0.0 for found in ours.values()]
    first.errorbar([at[row] for row in ours], means, yerr=spreads, fmt="o-", color=OKABE_ITO[2], capsize=3)
    first.set_title("here", fontsize=9)
    for axes, (source, numbers) in zip(others, panels.items(), strict=True):
        axes.plot([at[row] for row in numbers], list(numbers.values()), "s--", color=OKABE_ITO[0])
        axes.set_title(source, fontsize=7, wrap=True)
    ticks = list(dict.fromkeys(at.values()))
    for axes in (first, *others):
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=7)
        axes.set_xticks([], minor=True)
        axes.set(xlabel=table.sweep, ylabel=axis)
    return drawing
