"""Figures as SVG: learning curves, seeds, accuracy against cost, critical differences. Equal data make equal bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import scikit_posthocs
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from reattend.analysis.curves import curves
from reattend.analysis.figures import OKABE_ITO
from reattend.errors import ReattendError
from reattend.runs.metrics import FILE, read_metrics
from reattend.runs.result import Result
from reattend.tables.evidence import Evidence, Measured, Ranking
from reattend.tables.render.sweep_plot import along_sweep, places_of
from reattend.tables.render.view import column_label, label, row_label
from reattend.tables.results import Found
from reattend.tables.table import OF_A_RUN, Place, Value

_MARKERS = "osD^vP*X<>h"  # rows differ by them as by colour
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "reattend",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e0e0e0",
    "legend.frameon": False,
}
_NAMED = 3  # runs that a note names; there may be hundreds
_WIDTH, _HEIGHT = 5.0, 3.4  # inches; a page shows them at most at this size


@dataclass(frozen=True)
class Figure:
    """A drawing with what it says in words; those of a group stand together, a wide one of several panels alone."""

    group: str
    title: str
    svg: str
    wide: bool


@dataclass(frozen=True)
class Figures:
    """All figures of a page; `notes` says what is not drawn and why."""

    drawn: tuple[Figure, ...]
    notes: tuple[str, ...]


def figures(evidence: Evidence) -> Figures:
    """By column and value: learning curves, seeds, and the value against FLOPs and time; then critical differences."""
    drawn: list[Figure] = []
    notes: dict[str, list[str]] = {}
    with mpl.rc_context(_STYLE):
        for column in evidence.columns:
            curves_of = set()
            for name, value in evidence.request.table.values.items():
                cells = _cells(evidence, column, name)
                if not cells:
                    continue
                where = (column_label(evidence, column), label(name, value))
                quality = value.metric not in OF_A_RUN and column in evidence.request.columns
                if quality and value.metric not in curves_of:
                    curves_of.add(value.metric)
                    drawn += _curves(evidence, where, value, cells, notes)
                drawn.append(_seeds(evidence, where, value, cells))
                if quality:
                    drawn += _against_cost(evidence, where, value, cells, notes)
                drawn += _along_sweep(evidence, where, (column, name), cells)
        for ranking in evidence.rankings:
            drawn.append(_critical_differences(evidence, ranking))
    return Figures(tuple(drawn), tuple(_told(reason, runs) for reason, runs in notes.items()))


def _cells(evidence: Evidence, column: str, value: str) -> dict[str, Measured]:
    known = {row: evidence.places[Place(row, column, value)].measured for row in evidence.request.rows}
    return {row: measured for row, measured in known.items() if measured is not None}


def _curves(
    evidence: Evidence, where: tuple[str, str], value: Value, cells: Mapping[str, Measured], notes: dict[str, list[str]]
) -> Iterator[Figure]:
    split, _, metric = value.metric.partition("/")
    folders = {
        row_label(evidence, row): [found.folder for found in cells[row].runs if _has(found, value.metric, notes)]
        if row in cells
        else []
        for row in evidence.request.rows
    }
    if split == "test" and any(folders.values()):
        drawing = curves({where[0]: folders}, metric=metric, factor=value.factor, unit=value.unit)
        yield _figure(where, "learning curves (mean, and thin every seed)", drawing)


def _note(notes: dict[str, list[str]], reason: str, found: Found | None = None) -> None:
    runs = notes.setdefault(reason, [])
    if found is not None and (run := f"{found.result.attention} {found.folder.name}") not in runs:
        runs.append(run)


def _told(reason: str, runs: Sequence[str]) -> str:
    if not runs:
        return reason
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return f"{reason}: {', '.join(runs[:_NAMED])}{more}."


def _has(found: Found, metric: str, notes: dict[str, list[str]]) -> bool:
    """Whether the run's folder has what a curve is drawn from."""
    if not (found.folder / FILE).exists():
        _note(notes, f"No learning curve where a folder has no {FILE}, as that of an exported run", found)
        return False
    try:
        known = {row.metric for row in read_metrics(found.folder / FILE)}
    except ReattendError as error:
        _note(notes, f"No learning curve: {error}")
        return False
    measured = {metric, metric.replace("test/", "val/", 1)}
    if not measured & known:
        _note(notes, f"No learning curve where {FILE} has no {metric}", found)
    return bool(measured & known)


def _seeds(evidence: Evidence, where: tuple[str, str], value: Value, cells: Mapping[str, Measured]) -> Figure:
    drawing, axes = _axes(height=max(1.3, 0.8 + 0.32 * len(cells)))
    for place, (row, measured) in enumerate(cells.items()):
        style = _style(evidence, row)
        offsets = np.linspace(-0.22, 0.22, len(measured.numbers)) if len(measured.numbers) > 1 else [0.0]
        axes.plot([measured.mean] * 2, [place - 0.36, place + 0.36], color="#202020", linewidth=1.6)
        axes.plot(measured.numbers, place + np.array(offsets), style["marker"], color=style["color"], markersize=5)
    axes.set_yticks(range(len(cells)), [row_label(evidence, row) for row in cells])
    axes.set(xlabel=_axis_label(value), ylim=(len(cells) - 0.4, -0.6))
    axes.grid(visible=False, axis="y")
    return _figure(where, "every seed (bar: mean)", drawing)


def _against_cost(
    evidence: Evidence, where: tuple[str, str], value: Value, cells: Mapping[str, Measured], notes: dict[str, list[str]]
) -> Iterator[Figure]:
    devices = {found.result.device for measured in cells.values() for found in measured.runs}
    costs: list[tuple[str, str, Callable[[Result], float | None]]] = [
        ("FLOPs", "FLOPs of training on one sample", lambda result: result.training_flops),
    ]
    if len(devices) == 1:
        costs.append(("time", "seconds of training", lambda result: result.seconds))
    else:
        _note(notes, f"{', '.join(where)}: not drawn against time, the runs were on different devices.")
    for name, axis, cost_of in costs:
        costs_of_rows = {row: [cost_of(found.result) for found in measured.runs] for row, measured in cells.items()}
        known = {row: [c for c in costs if c is not None] for row, costs in costs_of_rows.items()}
        rows = [row for row in cells if known[row]]
        if not rows:
            _note(notes, f"{', '.join(where)}: not drawn against {name}, which the runs do not know.")
            continue
        drawing, axes = _axes()
        for row in rows:
            style = _style(evidence, row)
            at, measured = float(np.mean(known[row])), cells[row]
            axes.errorbar(
                at, measured.mean, yerr=measured.std, fmt=style["marker"], color=style["color"], capsize=3, markersize=6
            )
        axes.set(xlabel=axis, ylabel=_axis_label(value))
        axes.margins(x=0.1)
        _legend(drawing, evidence, rows)
        yield _figure(where, f"against {name} (mean ± std)", drawing)


def _along_sweep(
    evidence: Evidence, where: tuple[str, str], place: tuple[str, str], cells: Mapping[str, Measured]
) -> Iterator[Figure]:
    table, (column, name) = evidence.request.table, place
    at = places_of(table, evidence.request.rows)
    drawing = along_sweep(table, at, cells, column, name, _axis_label(table.values[name]))
    if drawing is not None:
        yield _figure(where, f"along the {table.sweep}", drawing)


def _critical_differences(evidence: Evidence, ranking: Ranking) -> Figure:
    names = {row: row_label(evidence, row) for row in ranking.average_ranks}
    p = pd.DataFrame(1.0, index=list(names.values()), columns=list(names.values()))
    for (first, second), found in ranking.nemenyi_p.items():
        p.loc[names[first], names[second]] = p.loc[names[second], names[first]] = found
    drawing, axes = _axes(height=1.2 + 0.22 * len(names))
    axes.grid(visible=False)
    scikit_posthocs.critical_difference_diagram(
        {names[row]: rank for row, rank in ranking.average_ranks.items()},
        p,
        ax=axes,
        label_fmt_left="{label} ({rank:.2f})",
        label_fmt_right="({rank:.2f}) {label}",
        text_h_margin=0.02,
        color_palette={name: _style(evidence, row)["color"] for row, name in names.items()},
    )
    value = label(ranking.value, evidence.request.table.values[ranking.value])
    return _figure(("Average ranks", value), "a bar joins rows that do not differ (Nemenyi, 5 %)", drawing)


def _axes(height: float = _HEIGHT) -> tuple[Drawing, Axes]:
    drawing = Drawing(figsize=(_WIDTH, height), layout="constrained")
    return drawing, drawing.add_subplot()


def _axis_label(value: Value) -> str:
    return f"{value.metric.replace('_', ' ')}{f' ({value.unit})' if value.unit else ''}"


def _style(evidence: Evidence, row: str) -> dict[str, str]:
    """The same for a row in all figures."""
    place = evidence.request.rows.index(row)
    return {
        "color": OKABE_ITO[place % len(OKABE_ITO)],
        "marker": _MARKERS[place % len(_MARKERS)],
    }


def _legend(drawing: Drawing, evidence: Evidence, rows: Sequence[str]) -> None:
    handles = [
        mpl.lines.Line2D([], [], linestyle="none", label=row_label(evidence, row), **_style(evidence, row))  # type: ignore[arg-type]
        for row in rows
    ]
    longest = max(len(row_label(evidence, row)) for row in rows)
    columns = max(1, min(len(rows), 60 // (longest + 6)))
    drawing.legend(handles=handles, loc="outside lower center", ncols=columns)


def _figure(where: tuple[str, str], told: str, drawing: Drawing) -> Figure:
    text = io.StringIO()
    drawing.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    group, value = where
    return Figure(group, f"{value}: {told}", svg[svg.index("<svg") :], wide=len(drawing.axes) > 1)


def apart(svg: str, number: int) -> str:
    """The drawing with identifiers of its own, so that several can stand in one page."""
    return re.sub(r'(id="|url\(#|href="#)', rf"\g<1>f{number}-", svg)
