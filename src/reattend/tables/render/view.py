"""What the three files of a page show, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reattend.tables.aggregate import SELECTED_BY
from reattend.tables.evidence import ClaimEvidence, Evidence, PlaceEvidence
from reattend.tables.published import is_filled_in
from reattend.tables.render.numbers import interval, mean_and_spread, plain, seeds, signed
from reattend.tables.render.searched import search_note
from reattend.tables.table import OF_A_RUN, Place, Published, Setting, Value

# Told by a symbol and a word, never by colour alone.
SYMBOLS = {
    "reproduced": "✓",
    "different": "✗",
    "undecided": "?",
    "supported": "✓",
    "contradicted": "✗",
    "not compared": "–",
}
_RATIO_DIGITS = 2


@dataclass(frozen=True)
class CellView:
    """One place.

    Attributes:
        ours: mean ± std (n), or why there is none in a word.
        published: the paper's number; "" if it is not known.
        mark: "unconfirmed" or "filled in" of the published number, or "".
        ratio: ours and the paper's relative to the baseline row, where these are compared.
        difference: or the ratio of the two ratios, with its interval; "" where nothing is compared.
        verdict: one of the evidence's, or "" where nothing is compared.
        more: how many seeds would decide.
    """

    ours: str
    published: str = ""
    mark: str = ""
    ratio: str = ""
    difference: str = ""
    verdict: str = ""
    more: str = ""
    is_measured: bool = True


@dataclass(frozen=True)
class Head:
    """A row's or a column's name on the page, the one that commands take, and what must stand beside it."""

    label: str
    name: str
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """Rows x columns of one value, or rows x values of the only column."""

    title: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Head, tuple[CellView, ...]], ...]
    notes: tuple[str, ...]


def grids(evidence: Evidence) -> list[Grid]:
    """The table in the paper's layout."""
    values, columns = evidence.request.table.values, evidence.columns
    if len(columns) == 1 and len(values) > 1:
        heads = [Head(f"{label(name, value)}{_in_unit(value)}", name) for name, value in values.items()]
        return [_grid(evidence, column_label(evidence, columns[0]), heads, [(columns[0], name) for name in values])]
    heads = [Head(column_label(evidence, column), column) for column in columns]
    return [
        _grid(evidence, f"{label(name, value)}{_in_unit(value)}", heads, [(column, name) for column in columns])
        for name, value in values.items()
    ]


def label(name: str, value: Value) -> str:
    """How a page names a value."""
    return value.label or name


def row_label(evidence: Evidence, row: str) -> str:
    """How a page names a row."""
    return _label(evidence.request.table.rows[row], row)


def column_label(evidence: Evidence, column: str) -> str:
    """How a page names a column; the mean has its own name."""
    known = evidence.request.table.columns
    return _label(known[column], column) if column in known else column


def value_notes(evidence: Evidence) -> list[str]:
    """For each value what it is, which epoch's, and when two are equal for all purposes."""
    selections = sorted({cell.config.protocol.selection for cell in evidence.cells if cell.config})
    selected = " or ".join(SELECTED_BY[selection].replace("_", " ") for selection in selections)
    notes = []
    for name, value in evidence.request.table.values.items():
        parts = [f"{label(name, value)}: {value.metric}{_in_unit(value)}", f"{value.better} is better"]
        if value.metric not in OF_A_RUN:
            parts.append("last epoch" if value.selection == "last" or not selected else f"epoch: {selected}")
        if value.relative_to:
            parts.append(f"compared as ratio to {row_label(evidence, value.relative_to)} on the same device")
        if value.margin is not None:
            factor = f"a factor of {1 + value.margin:g}" if value.relative_to else f"{value.margin:g}"
            parts.append(f"equal within {factor}")
        notes.append(", ".join(parts))
    return notes


def effect(claim: ClaimEvidence, value: Value) -> str:
    """A claim's effect with its interval, a difference in the value's unit or a ratio."""
    if claim.effect is None:
        return "–"
    if claim.claim.by == "ratio":
        ends = f" {interval(claim.interval, _RATIO_DIGITS)}" if claim.interval else ""
        return f"{plain(claim.effect, _RATIO_DIGITS)}×{ends}"
    ends = f" {interval(claim.interval, value.digits)}" if claim.interval else ""
    return f"{signed(claim.effect, value.digits)}{ends}"


def bounds(evidence: Evidence, claim: ClaimEvidence) -> str:
    """What the statement says as a comparison, such as "bn, Average − softmax, Average ≥ 1.00"."""
    stated, value = claim.claim, evidence.request.table.values[claim.claim.left.value]
    sides = [
        f"{row_label(evidence, place.row)}, {column_label(evidence, place.column)}"
        for place in (stated.left, stated.right)
    ]
    digits = _RATIO_DIGITS if stated.by == "ratio" else value.digits
    asked = f" {'/' if stated.by == 'ratio' else '−'} ".join(sides)
    if stated.at_least is not None:
        asked += f" ≥ {plain(stated.at_least, digits)}"
    if stated.at_most is not None:
        asked += f"{' and' if stated.at_least is not None else ''} ≤ {plain(stated.at_most, digits)}"
    return asked


def not_comparable(evidence: Evidence) -> str:
    """The stamp of a page that is not to be compared with the paper; "" if it may be."""
    if evidence.comparable:
        return ""
    configs = [cell.config for cell in evidence.cells if cell.config]
    known = {
        "scale=quick (minutes instead of the published recipe)": any(c.scale.name == "quick" for c in configs),
        "data=standin (generated data)": any(c.data.name == "standin" for c in configs),
    }
    reasons = [reason for reason, holds in known.items() if holds]
    return f"NOT COMPARABLE WITH PUBLISHED NUMBERS: {', '.join(reasons)}. They only stand beside."


def sources(evidence: Evidence) -> list[str]:
    """Where each published number that the page shows was read, and numbers of others for the same cells."""
    table, wanted, lines = evidence.request.table, set(evidence.columns), []
    for block in table.published:
        rows = [row for row in evidence.request.rows if wanted & set(block.numbers.get(row, {}))]
        if rows:
            names = ", ".join(row_label(evidence, row) for row in rows)
            runs = f", each the mean of {block.runs} runs" if block.runs else ""
            told = f"{_value_label(evidence, block.value)} of {names}: {block.certainty}, {block.source}{runs}"
            lines.append(told)
    for block in table.elsewhere:
        for row, columns in block.numbers.items():
            numbers = [(c, n[0] if isinstance(n, list) else n) for c, n in columns.items() if c in wanted]
            if numbers and row in evidence.request.rows:
                digits = table.values[block.value].digits
                shown = ", ".join(f"{column_label(evidence, column)} {plain(n, digits)}" for column, n in numbers)
                what = f"{_value_label(evidence, block.value)} of {row_label(evidence, row)}"
                lines.append(f"elsewhere, not compared with: {what}: {shown} ({block.certainty}, {block.source})")
    return lines


def _value_label(evidence: Evidence, name: str) -> str:
    return label(name, evidence.request.table.values[name])


def _label(setting: Setting, name: str) -> str:
    return setting.label or name


def _in_unit(value: Value) -> str:
    return f" ({value.unit})" if value.unit else ""


def _grid(evidence: Evidence, title: str, heads: Sequence[Head], at: Sequence[tuple[str, str]]) -> Grid:
    rows = []
    shown: list[PlaceEvidence] = []
    for row in evidence.request.rows:
        places = [evidence.places[Place(row, column, value)] for column, value in at]
        rows.append(
            (
                Head(row_label(evidence, row), row, search_note(evidence, row)),
                tuple(cell(evidence, place) for place in places),
            )
        )
        shown += places
    return Grid(title, tuple(heads), tuple(rows), tuple(_notes(evidence, shown)))


def cell(evidence: Evidence, known: PlaceEvidence) -> CellView:
    """A place as text."""
    place = known.place
    value = evidence.request.table.values[place.value]
    published, mark = _published(known.published, value.digits)
    if known.measured is None:
        return CellView(_state(evidence, place), published, mark, is_measured=False)
    ours = mean_and_spread(known.measured, value.digits)
    if known.compared is None or known.effect is None:
        return CellView(ours, published, mark)
    digits = _RATIO_DIGITS if value.relative_to else value.digits
    ratio, difference = "", signed(known.effect, digits)
    if value.relative_to:
        here, there = known.compared
        baseline = row_label(evidence, value.relative_to)
        ratio = f"{plain(here, digits)}× {baseline}, paper {plain(there, digits)}×"
        difference = f"{plain(known.effect, digits)}×"
    if known.interval:
        difference += f" {interval(known.interval, digits)}"
    more = seeds(known.more_seeds) if known.verdict == "undecided" else ""
    return CellView(ours, published, mark, ratio, difference, known.verdict, more)


def _published(known: Published | None, digits: int) -> tuple[str, str]:
    if known is None:
        return "", ""
    spread = "" if known.spread is None else f" ± {plain(known.spread, digits)}"
    mark = "unconfirmed" if known.certainty == "unconfirmed" else "filled in" if is_filled_in(known) else ""
    return f"{plain(known.number, digits)}{spread}", mark


def _state(evidence: Evidence, place: Place) -> str:
    states = {run.state for run in evidence.runs if (place.row, place.column) in run.cells}
    return next((state for state in ("failed", "interrupted", "running", "to do", "blocked") if state in states), "–")


def _notes(evidence: Evidence, shown: Sequence[PlaceEvidence]) -> Iterator[str]:
    """Why places have no verdict and what their numbers leave out, each reason once."""
    problems = {cell.problem for cell in evidence.cells if cell.problem}
    told_elsewhere = {"", "no finished run", "no published number is known"} | problems
    reasons: dict[str, dict[str, list[str]]] = {}
    for known in shown:
        told = {known.left_out}
        if evidence.comparable or known.measured is None:
            told.add(known.why)
        row = row_label(evidence, known.place.row)
        column = column_label(evidence, known.place.column)
        for reason in sorted(told - told_elsewhere):
            reasons.setdefault(reason, {}).setdefault(row, []).append(column)
    for reason, rows in reasons.items():
        alike: dict[str, list[str]] = {}
        for row, columns in rows.items():
            alike.setdefault(", ".join(dict.fromkeys(columns)), []).append(row)
        places = "; ".join(f"{', '.join(names)} on {columns}" for columns, names in alike.items())
        yield f"{places}: {reason}"
