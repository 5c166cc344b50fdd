"""Which result files belong to a cell of a table."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reattend.config import compose, read, to_dict
from reattend.config.revisions import revisions
from reattend.errors import ReattendError
from reattend.runs.identity import fingerprint
from reattend.runs.result import FILE, Result, read_result
from reattend.tables.table import Table


@dataclass(frozen=True)
class Cell:
    """Finished runs of one row and column, by seed, and the command line that makes such a run.

    `damaged` says of each result file of the task that cannot be read why.
    """

    row: str
    column: str
    overrides: tuple[str, ...]
    results: tuple[Result, ...]
    damaged: tuple[str, ...]


def collect(table: Table, row: str, column: str, extra: Sequence[str] = ()) -> Cell:
    """The finished runs of a cell, found by what they are: the cell's own configuration at any seed.

    Args:
        table: that the row and column belong to.
        row: of the table, or any attention's name.
        column: of the table.
        extra: overrides for the whole table, such as "scale=quick".

    Raises:
        ConfigError: the cell cannot be composed, because its task does not exist for one.
    """
    setting = table.rows[row].overrides if row in table.rows else [f"attention={row}"]
    overrides = (*setting, *table.columns[column].overrides, *extra)
    config = read(compose(list(overrides)))
    wanted, revised = to_dict(config), revisions(config)
    place = Path(wanted["outputs"], "runs", wanted["task"]["name"])
    results, damaged = [], []
    for path in sorted(place.glob(f"*/*/*/{FILE}")):
        try:
            result = read_result(path.parent)
        except ReattendError as error:
            damaged.append(str(error))
            continue
        if _is_at_some_seed(result, wanted, revised):
            results.append(result)
    return Cell(row, column, overrides, tuple(sorted(results, key=lambda result: result.seed)), tuple(damaged))


def _is_at_some_seed(result: Result, wanted: Mapping[str, Any], revised: Mapping[str, int]) -> bool:
    at_its_seed = copy.deepcopy(dict(wanted)) | {"seed": result.seed}
    checksum = "".join(result.data_checksums.values())
    return fingerprint(at_its_seed, checksum, revised) == result.fingerprint
