"""What a table would take, before anything is started."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from reattend.config import compose, read
from reattend.efficiency.throughput import PEAKS, Speed, probed, stated
from reattend.runs.environment import cpu_model
from reattend.tables.cell_cache import CellCache, Costed, Wanted
from reattend.tables.cells import Cell, cell_overrides, check_metrics
from reattend.tables.cost import RunCost
from reattend.tables.request import Request
from reattend.tables.results import Found, Results, results_in
from reattend.tables.runs import State, TableRun, blocked_cells, table_runs

CPU = "this CPU"
MEASURED = "from finished runs of the task on a CPU of this kind; elsewhere a rough lower bound, from matrix products"
DEVICES = (CPU, *PEAKS)


@dataclass(frozen=True)
class CellPlan:
    """A cell, what one run of it costs, and its runs that are its own or were not counted with an earlier cell.

    Attributes:
        cell: the cell.
        cost: of one run; None where the cell is blocked by its configuration.
        runs: at the wanted seeds.
        hours: of one run, by device.
    """

    cell: Cell
    cost: RunCost | None
    runs: tuple[TableRun, ...]
    hours: Mapping[str, float]

    @property
    def open(self) -> int:
        """How many runs are still to be done."""
        return sum(run.state in ("to do", "running", "interrupted", "failed") for run in self.runs)


@dataclass(frozen=True)
class Plan:
    """A table's cells, by device where the hours come from, and what is to be known before it is started."""

    request: Request
    cells: tuple[CellPlan, ...]
    sources: Mapping[str, str]
    remarks: tuple[str, ...] = ()

    @property
    def states(self) -> Counter[State]:
        return Counter(run.state for cell in self.cells for run in cell.runs)

    @property
    def blocked(self) -> dict[str, list[str]]:
        """As `blocked_cells`."""
        return blocked_cells(run for cell in self.cells for run in cell.runs)

    def hours(self, device: str) -> float:
        """Of all open runs, one after another on one device."""
        return sum(cell.open * cell.hours.get(device, 0.0) for cell in self.cells)


def plan(request: Request) -> Plan:
    """`plans` of one request."""
    return plans([request])[0]


def plans(requests: Sequence[Request]) -> list[Plan]:
    """Composes the wanted cells, looks at what is finished, and counts what the rest costs; starts nothing.

    Hours on this CPU follow from finished runs of the same task on a CPU of this name where there are some: the median
    of their operations a second. Else, and for GPUs, they are rough.

    Args:
        requests: of one command line, so that their runs go to one folder.

    Raises:
        ReattendError: no run would have any of a table's values.
    """
    outputs = read(compose([override for override in requests[0].extra if override.startswith("outputs=")])).outputs
    cache = CellCache(Path(outputs))
    places = [
        Wanted(row, column, cell_overrides(request.table, row, column, request.extra))
        for request in requests
        for row in request.rows
        for column in request.columns
    ]
    found = iter(cache.cells(places))
    cache.save()
    results = results_in([outputs])
    speeds = _Speeds(results)
    return [
        _plan(request, list(islice(found, len(request.rows) * len(request.columns))), results, speeds)
        for request in requests
    ]


def _plan(request: Request, found: Sequence[Costed], results: Results, speeds: _Speeds) -> Plan:
    remarks = tuple(check_metrics(request.table, [cell for cell, _ in found]))
    runs = table_runs([cell for cell, _ in found], request.seeds, results)
    own: dict[tuple[str, str], list[TableRun]] = {}
    for run in runs:
        own.setdefault(run.cells[0], []).append(run)
    cells = [
        CellPlan(cell, cost, tuple(own.get((cell.row, cell.column), ())), speeds.hours(cell, cost))
        for cell, cost in found
    ]
    return Plan(request, tuple(cells), speeds.sources(), remarks)


class _Speeds:
    """Speeds of the devices; the CPU is measured at most once, and only if a cell needs it."""

    def __init__(self, results: Results) -> None:
        self._by_task = _measured(results)
        self._probed: Speed | None = None
        self._used: dict[str, str] = {}

    def hours(self, cell: Cell, cost: RunCost | None) -> dict[str, float]:
        """Of one run of the cell, by device."""
        if cost is None or cell.config is None:
            return {}
        speeds = {CPU: self._cpu(cell.config.task.name)} | {device: stated(device) for device in PEAKS}
        self._used |= {device: speed.source for device, speed in speeds.items()}
        return {device: speed.seconds(cost.flops, cost.steps, cost.modules) / 3600 for device, speed in speeds.items()}

    def sources(self) -> Mapping[str, str]:
        """Where the hours of each device come from, for those that were asked for."""
        return self._used

    def _cpu(self, task: str) -> Speed:
        known = self._by_task.get(task)
        if known:
            return Speed(statistics.median(known), 0.0, MEASURED)
        self._probed = self._probed or probed()
        return self._probed


def _measured(results: Results) -> dict[str, list[float]]:
    """Operations a second of finished runs on CPUs of this kind, by task."""
    found: dict[str, list[float]] = {}
    for run in results.runs.values():
        speed = _operations_a_second(run)
        if speed:
            found.setdefault(run.result.task, []).append(speed)
    return found


def _operations_a_second(run: Found) -> float | None:
    """Of the training alone, whose seconds have the evaluations in them: so it is a little too low."""
    result = run.result
    batch = result.config.get("recipe", {}).get("batch_size")
    if not result.training_flops or not batch or not result.seconds or not result.device.startswith(f"{cpu_model()}, "):
        return None
    return float(result.training_flops * result.metrics["last"].step * batch / result.seconds)
