"""A plan as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from reattend.tables.plan import DEVICES, CellPlan, Plan, blocked, plan
from reattend.tables.request import Request
from reattend.tables.runs import State

_STATES: tuple[State, ...] = ("done", "interrupted", "failed", "to do", "blocked")
_HEADERS = [f"h {device.removeprefix('this ')}" for device in DEVICES]


def show(request: Request) -> None:
    """Plans one table and prints it."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    made = plan(request)
    console.print(f"[bold]{request.table.title}[/bold]\n{request.table.paper}", highlight=False)
    console.print(_cells(made))
    for line in _remarks(made):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def show_all(requests: Sequence[Request]) -> None:
    """Plans several tables and prints a line for each."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    shown = _table("All tables")
    shown.add_column("table", overflow="fold")
    for name in (*_STATES, *_HEADERS):
        shown.add_column(name, justify="right", no_wrap=True)
    made = [plan(request) for request in requests]
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
    return RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _cells(made: Plan) -> RichTable:
    shown = _table()
    shown.add_column("cell", overflow="fold")
    shown.add_column("runs")
    for name in ("steps", "parameters", "TFLOP", "memory", "disk", *_HEADERS):
        shown.add_column(name, justify="right", no_wrap=True)
    for cell in made.cells:
        if cell.cost is not None:
            shown.add_row(f"{cell.cell.row}, {cell.cell.column}", _states(cell), *_figures(cell))
    shown.add_section()
    disk = sum(cell.open * cell.cost.disk for cell in made.cells if cell.cost)
    flops = sum(cell.open * cell.cost.flops for cell in made.cells if cell.cost)
    memory = max((cell.cost.memory for cell in made.cells if cell.cost), default=0)
    steps = sum(cell.open * cell.cost.steps for cell in made.cells if cell.cost)
    total = [f"{steps:,}", "", f"{flops / 1e12:,.1f}", _bytes(memory), _bytes(disk)]
    counts = ", ".join(f"{made.states[state]} {state}" for state in _STATES if made.states[state])
    shown.add_row("all open runs", counts, *total, *(_hours(made.hours(device)) for device in DEVICES))
    return shown


def _states(cell: CellPlan) -> str:
    counts = {state: sum(run.state == state for run in cell.runs) for state in _STATES}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "shared"


def _figures(cell: CellPlan) -> Iterator[str]:
    cost = cell.cost
    assert cost is not None
    yield f"{cost.steps:,}"
    yield f"{cost.parameters:,}"
    yield f"{cost.flops / 1e12:,.1f}"
    yield _bytes(cost.memory)
    yield _bytes(cost.disk)
    for device in DEVICES:
        yield _hours(cell.hours[device])


def _remarks(made: Plan) -> Iterator[str]:
    yield "Figures of a cell are of one run; hours of one after another on one device."
    for device, source in made.sources.items():
        yield f"  hours on {device}: {source}"
    yield "  memory, on the device and without torch itself, and disk: estimates"
    if any("V100" in device for device in made.sources):
        yield "  a V100 needs trainer.precision=16-mixed, which makes other runs of it"
    for run in (run for cell in made.cells for run in cell.runs if run.state == "failed"):
        yield f"failed {run.attempts} time(s): {', '.join(run.cells[0])}, seed {run.seed}: {run.reason}"
    for reason, cells in blocked(made.cells).items():
        yield f"blocked: {', '.join(cells[:4])}{f' and {len(cells) - 4} more' if len(cells) > 4 else ''}: {reason}"
    commands = [cell.cell.command for cell in made.cells if cell.open]
    if commands:
        yield "Each cell alone, with seed=0 and so on:"
        yield from (f"  {command}" for command in commands)
    else:
        yield "Nothing is left to run." if made.states["done"] else "Nothing can be run: every run is blocked."


def _bytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**29 else f"{number / 2**20:.0f} MiB"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2f}" if hours >= 0.005 or not hours else "<0.01"
