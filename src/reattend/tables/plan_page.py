"""A plan as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from reattend.runs.files import size_text
from reattend.tables.plan import DEVICES, CellPlan, Plan, plan, plans
from reattend.tables.request import Request
from reattend.tables.runs import State

_STATES: tuple[State, ...] = ("done", "running", "interrupted", "failed", "to do", "blocked")
_HEADERS = [f"h {device.removeprefix('this ')}" for device in DEVICES]
_LEAST_NAME = 24  # letters of a cell's name that stand in one line, however narrow the terminal is


def show(request: Request) -> None:
    """Plans one table and prints it."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    made = plan(request)
    console.print(request.table.title, style="bold", markup=False, highlight=False)
    if request.table.paper:
        console.print(request.table.paper, markup=False, highlight=False)
    for block in blocks(made, console.width):
        console.print(block)
    for line in _remarks(made):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def show_all(requests: Sequence[Request]) -> None:
    """Plans several tables and prints a line for each."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    shown = _table("All tables")
    shown.add_column("table", overflow="fold")
    for name in (*_STATES, *_HEADERS):
        shown.add_column(name, justify="right", no_wrap=True)
    made = plans(requests)
    for one in made:
        shown.add_row(one.request.name, *_totals([one]))
    shown.add_section()
    shown.add_row("all", *_totals(made))
    console.print(shown)
    console.print("One table: add table=NAME. Cells that tables share are counted in each of them.", highlight=False)


def _totals(plans: Sequence[Plan]) -> Iterator[str]:
    for state in _STATES:
        yield str(sum(one.states[state] for one in plans) or "")
    for device in DEVICES:
        yield _hours(sum(one.hours(device) for one in plans))


def _table(title: str | None = None) -> RichTable:
    return RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)


def blocks(made: Plan, width: int) -> list[RichTable]:
    """The cells with their figures, in several tables below each other where one is too wide; no figure is cut."""
    known = [cell for cell in made.cells if cell.cost is not None]
    names = [*(f"{cell.cell.row}, {cell.cell.column}" for cell in known), "all open runs"]
    columns = {"runs": [*map(_states, known), _counts(made)]} | _figures(known, made)
    longest = max(map(len, names))
    room = width - 2 - longest  # blanks at both edges
    if sum(map(_width, columns.items())) > room:
        columns["runs"] = [states.replace(", ", ",\n") for states in columns["runs"]]
        room = width - 2 - min(longest, max(_LEAST_NAME, width // 3))
    shown, left = [], list(columns.items())
    while left:
        taken = [left.pop(0)]
        while left and sum(map(_width, [*taken, left[0]])) <= room:
            taken.append(left.pop(0))
        shown.append(_block(names, dict(taken)))
    return shown


def _width(column: tuple[str, Sequence[str]]) -> int:
    """Letters that a column takes with the gap before it."""
    name, entries = column
    return 1 + max(len(line) for text in (name, *entries) for line in text.split("\n"))


def _block(names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> RichTable:
    shown = _table()
    shown.add_column("cell", overflow="fold")
    for name in columns:
        shown.add_column(name, justify="left" if name == "runs" else "right", no_wrap=True)
    *cells, total = zip(names, *columns.values(), strict=True)
    for line in cells:
        shown.add_row(*line)
    shown.add_section()
    shown.add_row(*total)
    return shown


def _states(cell: CellPlan) -> str:
    counts = {state: sum(run.state == state for run in cell.runs) for state in _STATES}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "shared"


def _counts(made: Plan) -> str:
    return ", ".join(f"{made.states[state]} {state}" for state in _STATES if made.states[state])


def _figures(known: Sequence[CellPlan], made: Plan) -> dict[str, list[str]]:
    """By column: the figure of each cell, and that of all open runs."""
    costs = [(cell.open, cell.cost) for cell in known if cell.cost]
    steps = [f"{cost.steps:,}" for _, cost in costs]
    flops = [f"{cost.flops / 1e12:,.1f}" for _, cost in costs]
    disk = sum(count * cost.disk for count, cost in costs)
    return {
        "steps": [*steps, f"{sum(count * cost.steps for count, cost in costs):,}"],
        "parameters": [*(f"{cost.parameters:,}" for _, cost in costs), ""],
        "TFLOP": [*flops, f"{sum(count * cost.flops for count, cost in costs) / 1e12:,.1f}"],
        "memory": [
            *(size_text(cost.memory) for _, cost in costs),
            size_text(max((c.memory for _, c in costs), default=0)),
        ],
        "disk": [*(size_text(cost.disk) for _, cost in costs), size_text(disk)],
    } | {
        header: [*(_hours(cell.hours[device]) for cell in known), _hours(made.hours(device))]
        for header, device in zip(_HEADERS, DEVICES, strict=True)
    }


def _remarks(made: Plan) -> Iterator[str]:
    yield "Figures of a cell are of one run; hours of one after another on one device."
    by_source: dict[str, list[str]] = {}
    for device, source in made.sources.items():
        by_source.setdefault(source, []).append(device)
    yield from (f"  hours on {', '.join(devices)}: {source}" for source, devices in by_source.items())
    yield "  memory, on the device and without torch itself, and disk: estimates"
    if any("V100" in device for device in made.sources):
        yield "  on a V100 add trainer.precision=16-mixed: such runs are counted apart from these"
    yield from made.remarks
    for run in (run for cell in made.cells for run in cell.runs if run.state in ("failed", "interrupted")):
        if run.reason:
            yield f"{run.state} ({run.attempts} started): {', '.join(run.cells[0])}, seed {run.seed}: {run.reason}"
    for reason, cells in made.blocked.items():
        yield f"blocked: {', '.join(cells[:4])}{f' and {len(cells) - 4} more' if len(cells) > 4 else ''}: {reason}"
    commands = [cell.cell.command for cell in made.cells if cell.open]
    if commands:
        yield "Each cell alone, with seed=0 and so on:"
        yield from (f"  {command}" for command in commands)
    else:
        yield "Nothing is left to run." if made.states["done"] else "Nothing can be run: every run is blocked."


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2f}"
