"""All finished runs that are at hand, and which of them belong to a cell."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reattend.config import to_dict
from reattend.data.checksum import data_checksum
from reattend.errors import ReattendError
from reattend.runs.identity import fingerprint
from reattend.runs.result import FILE, Result, read_result
from reattend.tables.cells import Cell

EXPORTED = Path("results", "runs")  # where `scripts/runs.py export` puts runs, in folders as below <outputs>/runs


@dataclass(frozen=True)
class Found:
    """A result and the folder that it was read from."""

    result: Result
    folder: Path

    @property
    def checksum(self) -> str:
        """Of the data that the run was on."""
        return "".join(self.result.data_checksums.values())


@dataclass(frozen=True)
class Results:
    """Finished runs by fingerprint; `damaged` says of each result file that cannot be read why."""

    runs: Mapping[str, Found]
    damaged: tuple[str, ...]

    def of(self, cell: Cell) -> tuple[list[Found], list[Found]]:
        """Runs of the cell's configuration, by seed: found by what they are, not by where they lie.

        Returns:
            those on one version of the data, today's if that is at hand and else the newest run's, so one of each seed;
            and those on other data.
        """
        if cell.config is None:
            return [], []
        wanted = to_dict(cell.config)
        found = sorted(
            (found for found in self.runs.values() if _is_at_some_seed(found, wanted, cell.revisions)),
            key=lambda found: found.result.seed,
        )
        if not found:
            return [], []
        try:
            checksum = data_checksum(cell.config)
        except ReattendError:
            checksum = max(found, key=_age).checksum
        same = [run for run in found if run.checksum == checksum]
        return same, [run for run in found if run.checksum != checksum]


def results_at_hand(cells: Iterable[Cell]) -> Results:
    """Finished runs in the cells' output folders and among the exported ones."""
    return results_in(dict.fromkeys(cell.config.outputs for cell in cells if cell.config))


def results_in(outputs: Iterable[str]) -> Results:
    """Finished runs in these output folders and among the exported ones."""
    return load_results([*(Path(folder, "runs") for folder in outputs), EXPORTED])


def load_results(roots: Iterable[Path]) -> Results:
    """Every result file below `roots`; where two roots have a run, the first counts."""
    runs: dict[str, Found] = {}
    damaged = []
    for root in roots:
        for path in sorted(root.glob(f"**/{FILE}")):
            if path.parent.name.startswith("before-"):
                continue  # set aside by rerun=true
            try:
                stat = path.stat()
                result = _read(path.parent, (stat.st_ino, stat.st_mtime_ns, stat.st_size))
            except (ReattendError, FileNotFoundError) as error:
                damaged.append(str(error))
                continue
            runs.setdefault(result.fingerprint, Found(result, path.parent))
    return Results(runs, tuple(damaged))


@cache
def _read(folder: Path, state: tuple[int, int, int]) -> Result:
    """Once for all tables that a command is asked for; a file that was written anew has another `state`."""
    return read_result(folder)


def _is_at_some_seed(found: Found, wanted: Mapping[str, Any], revised: Mapping[str, int]) -> bool:
    result = found.result
    if (result.task, result.scale, result.data) != (
        wanted["task"]["name"],
        wanted["scale"]["name"],
        wanted["data"]["name"],
    ):
        return False
    at_its_seed = copy.copy(dict(wanted)) | {"seed": result.seed}
    return fingerprint(at_its_seed, found.checksum, revised) == result.fingerprint


def _age(found: Found) -> tuple[float, str]:
    """Grows with the time at which the result was written; equal times are told apart the same way everywhere."""
    return (found.folder / FILE).stat().st_mtime, found.checksum
