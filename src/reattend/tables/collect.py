"""Everything that a page shows, from result files alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from reattend.runs.result import Result
from reattend.runs.stamps import is_generated
from reattend.tables.aggregate import mean_over_columns, measure
from reattend.tables.cells import Cell
from reattend.tables.claims import judge_claim, with_corrections
from reattend.tables.evidence import ClaimEvidence, Evidence, Measured, Ranking
from reattend.tables.ranking import rank
from reattend.tables.request import Request
from reattend.tables.results import Found, results_at_hand
from reattend.tables.runs import table_runs
from reattend.tables.stamps import on_other_data, stamps
from reattend.tables.table import OF_A_DEVICE, Place
from reattend.tables.verdicts import NOT_COMPARABLE, judge_place

_Cells = Mapping[tuple[str, str], Sequence[Found]]


def collect_evidence(request: Request) -> Evidence:
    """What the finished runs of the wanted cells and seeds say, beside the published numbers and claims."""
    cells = request.cells()
    results = results_at_hand(cells)
    found, others = {}, {}
    for cell in cells:
        same, other = results.of(cell)
        at = (cell.row, cell.column)
        found[at] = [run for run in same if run.result.seed in request.seeds]
        others[at] = [run for run in other if run.result.seed in request.seeds]
    comparable = not any(cell.config and _is_small(cell) for cell in cells)
    measured, lacking, left_out = _measured(request, cells, found, others)
    generated = _generated(request, cells)
    places = {
        place: judge_place(
            request.table,
            place,
            measured,
            lacking.get(place, ""),
            left_out.get(place, ""),
            comparable and place.column not in generated,
        )
        for place in _all_places(request)
    }
    return Evidence(
        request=request,
        cells=tuple(cells),
        runs=tuple(table_runs(cells, request.seeds, results)),
        places=places,
        claims=with_corrections(list(_claims(request, measured, lacking, generated))) if comparable else (),
        rankings=tuple(_rankings(request, measured)),
        comparable=comparable,
        stamps=tuple(stamps(request, _results(found), [run for runs in others.values() for run in runs])),
        damaged=results.damaged,
    )


def _is_small(cell: Cell) -> bool:
    return cell.config is not None and (cell.config.scale.name == "quick" or cell.config.data.name == "standin")


def _generated(request: Request, cells: Sequence[Cell]) -> set[str]:
    """Columns of data that is generated in the original's manner only, the mean over any such one with them."""
    columns = {cell.column for cell in cells if cell.config and is_generated(cell.config.task.data_options)}
    return columns | ({request.table.mean} if columns and request.table.mean else set())


def _all_places(request: Request) -> Iterator[Place]:
    mean = [request.table.mean] if request.table.mean else []
    for row in request.rows:
        for column in [*request.columns, *mean]:
            for value in request.table.values:
                yield Place(row, column, value)


def _measured(
    request: Request, cells: Sequence[Cell], found: _Cells, others: _Cells
) -> tuple[dict[Place, Measured], dict[Place, str], dict[Place, str]]:
    """Measured places; why others are not; and what of their runs those that are leave out."""
    table = request.table
    measured: dict[Place, Measured] = {}
    lacking: dict[Place, str] = {}
    left_out: dict[Place, str] = {}
    problems = {(cell.row, cell.column): cell.problem for cell in cells}
    for place in _all_places(request):
        at = (place.row, place.column)
        if place.column == table.mean:
            numbers, reason = mean_over_columns(table, place.row, place.value, measured, request.columns)
        else:
            numbers, reason = measure(found[at], table.values[place.value])
        other = f"{on_other_data(others[at])} left out" if others.get(at) else ""
        if numbers is None:
            lacking[place] = problems.get(at) or "; ".join(told for told in (reason, other) if told)
        else:
            measured[place] = numbers
            left_out[place] = "; ".join(told for told in (reason, other) if told)
    return measured, lacking, left_out


def _claims(
    request: Request, measured: Mapping[Place, Measured], lacking: Mapping[Place, str], generated: Collection[str]
) -> Iterator[ClaimEvidence]:
    """Those of which both rows are wanted, before the correction for many."""
    looked_at = set(_all_places(request))
    for name, claim in request.table.claims.items():
        if claim.left.row not in request.rows or claim.right.row not in request.rows:
            continue
        absent = {place: "not on this page" for place in (claim.left, claim.right) if place not in looked_at}
        left, right = measured.get(claim.left), measured.get(claim.right)
        sides = [side for side in (left, right) if side is not None]
        metrics = {request.table.values[place.value].metric for place in (claim.left, claim.right)}
        why_not = _different_devices(sides) if metrics & set(OF_A_DEVICE) else ""
        if {claim.left.column, claim.right.column} & set(generated):
            why_not = NOT_COMPARABLE
        yield judge_claim(name, claim, left, right, {**lacking, **absent}, why_not)


def _different_devices(sides: Iterable[Measured]) -> str:
    devices = {run.result.device for side in sides for run in side.runs}
    return f"measured on different devices: {', '.join(sorted(devices))}" if len(devices) > 1 else ""


def _rankings(request: Request, measured: Mapping[Place, Measured]) -> Iterator[Ranking]:
    for name, value in request.table.values.items():
        places = {
            place: measured[place]
            for place in _all_places(request)
            if place.value == name and place.column in request.columns and place in measured
        }
        if value.metric in OF_A_DEVICE and _different_devices(places.values()):
            continue  # the page says of each cell that its devices differ
        means: dict[str, dict[str, float]] = {}
        for place, numbers in places.items():
            means.setdefault(place.row, {})[place.column] = numbers.mean
        ranking = rank(name, value, request.rows, means)
        if ranking is not None:
            yield ranking


def _results(found: _Cells) -> list[Result]:
    return [run.result for runs in found.values() for run in runs]
