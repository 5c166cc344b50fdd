"""Everything that a page shows, from result files alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from reattend.runs.result import Result
from reattend.tables.aggregate import mean_over_columns, measure, relative_to
from reattend.tables.cells import Cell
from reattend.tables.claims import judge_claim, with_corrections
from reattend.tables.evidence import ClaimEvidence, Evidence, Measured, PlaceEvidence, Ranking
from reattend.tables.ranking import rank
from reattend.tables.request import Request
from reattend.tables.results import EXPORTED, Found, Results, load_results
from reattend.tables.runs import table_runs
from reattend.tables.table import OF_A_DEVICE, Claim, Place, Published, Table, Value
from reattend.tables.verdicts import LEAST_SEEDS, compare

_NOT_COMPARABLE = "quick scale or stand-in data is never compared with published numbers"


def collect_evidence(request: Request) -> Evidence:
    """What the finished runs of the wanted cells and seeds say, beside the published numbers and claims."""
    cells = request.cells()
    results = results_at_hand(cells)
    found = {
        (cell.row, cell.column): [run for run in results.of(cell) if run.result.seed in request.seeds] for cell in cells
    }
    comparable = not any(cell.config and _is_small(cell) for cell in cells)
    measured, reasons = _measured(request, cells, found)
    places = {place: _place(request.table, place, measured, reasons, comparable) for place in _all_places(request)}
    claims = [
        _judged(request.table, name, claim, measured)
        for name, claim in request.table.claims.items()
        if claim.left.row in request.rows and claim.right.row in request.rows and comparable
    ]
    return Evidence(
        request=request,
        cells=tuple(cells),
        runs=tuple(table_runs(cells, request.seeds, results)),
        places=places,
        claims=with_corrections(claims),
        rankings=tuple(_rankings(request, measured)),
        comparable=comparable,
        stamps=tuple(_stamps([run.result for runs in found.values() for run in runs])),
        damaged=results.damaged,
    )


def _judged(table: Table, name: str, claim: Claim, measured: Mapping[Place, Measured]) -> ClaimEvidence:
    left, right = measured.get(claim.left), measured.get(claim.right)
    judged = judge_claim(name, claim, left, right)
    devices = {run.result.device for side in (left, right) if side is not None for run in side.runs}
    hardware = any(table.values[place.value].metric in OF_A_DEVICE for place in (claim.left, claim.right))
    if hardware and len(devices) > 1:
        why = f"measured on different devices: {', '.join(sorted(devices))}"
        return dataclasses.replace(judged, p=None, p_against=None, verdict="not compared", more_seeds=None, why=why)
    return judged


def results_at_hand(cells: Sequence[Cell]) -> Results:
    """Finished runs in the cells' output folders and among the exported ones."""
    roots = dict.fromkeys(Path(cell.config.outputs, "runs") for cell in cells if cell.config)
    return load_results([*roots, EXPORTED])


def _is_small(cell: Cell) -> bool:
    return cell.config is not None and (cell.config.scale.name == "quick" or cell.config.data.name == "standin")


def _all_places(request: Request) -> Iterator[Place]:
    mean = [request.table.mean] if request.table.mean else []
    for row in request.rows:
        for column in [*request.columns, *mean]:
            for value in request.table.values:
                yield Place(row, column, value)


def _measured(
    request: Request, cells: Sequence[Cell], found: Mapping[tuple[str, str], Sequence[Found]]
) -> tuple[dict[Place, Measured], dict[Place, str]]:
    """Measured places, and why others are not."""
    table = request.table
    measured: dict[Place, Measured] = {}
    reasons: dict[Place, str] = {}
    problems = {(cell.row, cell.column): cell.problem for cell in cells}
    for place in _all_places(request):
        at = (place.row, place.column)
        if place.column == table.mean:
            numbers, reason = mean_over_columns(table, place.row, place.value, measured)
        else:
            numbers, reason = measure(found[at], table.values[place.value])
        if numbers is not None:
            measured[place] = numbers
        reasons[place] = problems.get(at) or reason
    return measured, reasons


def _place(
    table: Table, place: Place, measured: Mapping[Place, Measured], reasons: Mapping[Place, str], comparable: bool
) -> PlaceEvidence:
    ours, value = measured.get(place), table.values[place.value]
    published = table.published_number(place.row, place.column, place.value)
    compared, why = _compared(table, place, measured, published)
    known = PlaceEvidence(place, ours, published, compared, None, None, "not compared")
    reason = reasons[place] if ours is None else _not_compared(published, value, comparable) or why
    if reason or compared is None or value.margin is None or published is None:
        return dataclasses.replace(known, why=reason)
    numbers, number = compared
    if len(numbers.by_seed) < LEAST_SEEDS:
        difference = numbers.mean - number
        return dataclasses.replace(
            known, difference=difference, why=f"{len(numbers.by_seed)} of at least {LEAST_SEEDS} seeds"
        )
    printed = 0.0 if value.relative_to else 0.5 * 10.0**-value.digits  # what rounding may have hidden
    spread = None if value.relative_to else published.spread
    made = compare(numbers, number, value.margin + printed, spread, published.runs)
    return dataclasses.replace(
        known,
        difference=made.difference,
        interval=made.interval,
        verdict=made.verdict,
        more_seeds=made.more_seeds,
        why=reasons[place],
    )


def _not_compared(published: Published | None, value: Value, comparable: bool) -> str:
    if published is None:
        return "no published number is known"
    if not comparable:
        return _NOT_COMPARABLE
    if published.certainty == "unconfirmed":
        return "the published number is unconfirmed"
    return "" if value.margin is not None else "the table states no margin for it"


def _compared(
    table: Table, place: Place, measured: Mapping[Place, Measured], published: Published | None
) -> tuple[tuple[Measured, float] | None, str]:
    """What the verdict compares, and why there is nothing."""
    ours, baseline = measured.get(place), table.values[place.value].relative_to
    if ours is None or published is None:
        return None, ""
    if baseline is None:
        return (ours, published.number), ""
    if place.row == baseline:
        return None, "the others are divided by it"
    theirs = table.published_number(baseline, place.column, place.value)
    base = measured.get(Place(baseline, place.column, place.value))
    if base is None or theirs is None:
        return None, f"{baseline}, by which it is divided, has no {'run' if base is None else 'published number'}"
    ratio, why = relative_to(ours, base)
    return (None if ratio is None else (ratio, published.number / theirs.number)), why


def _rankings(request: Request, measured: Mapping[Place, Measured]) -> Iterator[Ranking]:
    for name, value in request.table.values.items():
        means = {
            row: {
                column: measured[Place(row, column, name)].mean
                for column in request.columns
                if Place(row, column, name) in measured
            }
            for row in request.rows
        }
        ranking = rank(name, value, request.rows, means)
        if ranking is not None:
            yield ranking


def _stamps(results: Sequence[Result]) -> Iterator[str]:
    if any(result.scale == "quick" for result in results):
        yield "scale=quick: minutes instead of the published recipe. Not comparable with published numbers."
    if any(result.data == "standin" for result in results):
        yield "data=standin: generated data. Not comparable with anything published."
    if any(result.protocol == "published" for result in results):
        yield "protocol=published: the epoch is selected on test, as the followed code does; these are upper bounds."
    for name, values in (
        ("fidelity", {str(result.fidelity["name"]) for result in results}),
        ("commits", {result.git_commit or "unknown" for result in results}),
        ("devices", {result.device for result in results}),
        ("versions of torch", {result.versions.get("torch", "unknown") for result in results}),
    ):
        if len(values) > 1:
            yield f"mixed {name}: {', '.join(sorted(values))}"
    if any((result.git_commit or "").endswith("+changes") for result in results):
        yield "some runs are of code with changes that are not committed"
