"""All finished runs that are at hand, and which of them belong to a cell."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reattend.config import to_dict
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


@dataclass(frozen=True)
class Results:
    """Finished runs by fingerprint; `damaged` says of each result file that cannot be read why."""

    runs: Mapping[str, Found]
    damaged: tuple[str, ...]

    def of(self, cell: Cell) -> list[Found]:
        """Runs of the cell's configuration, by seed: found by what they are, not by where they lie."""
        if cell.config is None:
            return []
        wanted = to_dict(cell.config)
        return sorted(
            (found for found in self.runs.values() if _is_at_some_seed(found.result, wanted, cell.revisions)),
            key=lambda found: found.result.seed,
        )


def load_results(roots: Iterable[Path]) -> Results:
    """Every result file below `roots`; where two roots have a run, the first counts."""
    runs: dict[str, Found] = {}
    damaged = []
    for root in roots:
        for path in sorted(root.glob(f"**/{FILE}")):
            if path.parent.name.startswith("before-"):
                continue  # set aside by rerun=true
            try:
                result = read_result(path.parent)
            except ReattendError as error:
                damaged.append(str(error))
                continue
            runs.setdefault(result.fingerprint, Found(result, path.parent))
    return Results(runs, tuple(damaged))


def _is_at_some_seed(result: Result, wanted: Mapping[str, Any], revised: Mapping[str, int]) -> bool:
    if (result.task, result.scale, result.data) != (
        wanted["task"]["name"],
        wanted["scale"]["name"],
        wanted["data"]["name"],
    ):
        return False
    at_its_seed = copy.copy(dict(wanted)) | {"seed": result.seed}
    checksum = "".join(result.data_checksums.values())
    return fingerprint(at_its_seed, checksum, revised) == result.fingerprint
