"""The runs that a table consists of, and how far each is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reattend.config import to_dict
from reattend.config.schema import RunConfig
from reattend.data.checksum import data_checksum
from reattend.errors import ReattendError
from reattend.runs.identity import fingerprint, run_folder
from reattend.runs.status import read_status
from reattend.tables.cells import Cell, quoted
from reattend.tables.results import Results

State = Literal["done", "to do", "interrupted", "failed", "blocked"]


@dataclass(frozen=True)
class TableRun:
    """One run of a table.

    Attributes:
        cells: rows and columns that it belongs to; several where tables or cells share it.
        overrides: what `train.py` takes.
        config: composed from these; None where a cell is blocked by its configuration.
        fingerprint, folder: its identity; None without data.
        state: "interrupted" has been started and not ended: another process may be at it.
        reason: why it is blocked or failed.
        attempts: how often it was started.
    """

    cells: tuple[tuple[str, str], ...]
    seed: int
    overrides: tuple[str, ...]
    config: RunConfig | None
    fingerprint: str | None
    folder: Path | None
    state: State
    reason: str = ""
    attempts: int = 0

    @property
    def command(self) -> str:
        """The command that runs it alone."""
        return " ".join(["python train.py", *map(quoted, self.overrides)])


def table_runs(cells: Iterable[Cell], seeds: Sequence[int], results: Results) -> list[TableRun]:
    """One run for each cell and seed, in this order, and only one for cells that are the same."""
    runs: dict[str, TableRun] = {}
    for cell in cells:
        for seed in seeds:
            run = _run(cell, seed, results)
            key = run.fingerprint or f"{cell.row}/{cell.column}/{seed}"
            known = runs.get(key)
            runs[key] = run if known is None else dataclasses.replace(known, cells=known.cells + run.cells)
    return list(runs.values())


def _run(cell: Cell, seed: int, results: Results) -> TableRun:
    at = ((cell.row, cell.column),)
    overrides = (*cell.overrides, f"seed={seed}")
    if cell.config is None:
        return TableRun(at, seed, overrides, None, None, None, "blocked", cell.problem)
    config = dataclasses.replace(cell.config, seed=seed)
    try:
        checksum = data_checksum(config)
    except ReattendError as error:
        return TableRun(at, seed, overrides, config, None, None, "blocked", str(error))
    plain = to_dict(config)
    name = fingerprint(plain, checksum, cell.revisions)
    folder = run_folder(config.outputs, plain, name)
    if name in results.runs:
        return TableRun(at, seed, overrides, config, name, folder, "done")
    state, reason, attempts = _progress(folder)
    return TableRun(at, seed, overrides, config, name, folder, state, reason, attempts)


def _progress(folder: Path) -> tuple[State, str, int]:
    try:
        status = read_status(folder)
    except ReattendError as error:
        return "to do", str(error), 0
    if status is None or status.state == "planned":
        return "to do", "", 0
    if status.state == "failed" and status.error and status.error["type"] != "RunInterruptedError":
        return "failed", f"{status.error['type']}: {status.error['message']}", status.attempts
    return "interrupted", "", status.attempts
