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
from reattend.runs.catalogue import state_of
from reattend.runs.identity import fingerprint, run_folder
from reattend.runs.result import FILE as RESULT
from reattend.runs.status import FILE as STATUS
from reattend.tables.cells import Cell, train_line
from reattend.tables.results import Results

State = Literal["done", "running", "to do", "interrupted", "failed", "blocked"]


@dataclass(frozen=True)
class TableRun:
    """One run of a table.

    Attributes:
        cells: rows and columns that it belongs to; several where tables or cells share it.
        overrides: what `train.py` takes.
        config: composed from these; None where a cell is blocked by its configuration.
        fingerprint, folder: its identity; None without data.
        state: "running" has a process at it; "interrupted" has been started, not ended, and has none.
        reason: why it is blocked or failed, or which of its files is missing or damaged.
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
        return train_line(self.overrides)


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


def blocked_cells(runs: Iterable[TableRun]) -> dict[str, list[str]]:
    """Why runs are blocked, each reason once, with the names of the cells that it holds for."""
    reasons: dict[str, dict[str, None]] = {}
    for run in runs:
        if run.state == "blocked":
            reasons.setdefault(run.reason, {}).update({f"{row} on {column}": None for row, column in run.cells})
    return {reason: list(names) for reason, names in reasons.items()}


def _run(cell: Cell, seed: int, results: Results) -> TableRun:
    at = ((cell.row, cell.column),)
    overrides = (*cell.overrides, f"seed={seed}")
    if cell.config is None:
        return TableRun(at, seed, overrides, None, None, None, "blocked", cell.problem)
    config = dataclasses.replace(cell.config, seed=seed)
    try:
        checksum = data_checksum(config)
    except ReattendError as error:
        # Where its data is not, a finished run is known by the checksum that it has kept.
        for found in results.of(cell)[0]:
            if found.result.seed == seed:
                return TableRun(at, seed, overrides, config, found.result.fingerprint, found.folder, "done")
        return TableRun(at, seed, overrides, config, None, None, "blocked", str(error))
    plain = to_dict(config)
    name = fingerprint(plain, checksum, cell.revisions)
    folder = run_folder(config.outputs, plain, name)
    if name in results.runs:
        return TableRun(at, seed, overrides, config, name, folder, "done")
    state, reason, attempts = _progress(folder)
    return TableRun(at, seed, overrides, config, name, folder, state, reason, attempts)


def _progress(folder: Path) -> tuple[State, str, int]:
    if not any((folder / name).exists() for name in (STATUS, RESULT)):
        return "to do", "", 0
    found, attempts, reason, _ = state_of(folder)
    return "to do" if found == "planned" else found, reason, attempts
