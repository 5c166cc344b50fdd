"""Cells that were composed before: planning a table again takes no composing, no counting and no torch."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import reattend
from reattend.config import config_dir, from_dict, to_dict
from reattend.errors import ReattendError
from reattend.runs.files import read_json, write_json
from reattend.tables.cells import Cell, compose_cell
from reattend.tables.cost import RunCost, run_cost

FILE = Path("cache", "plan.json")


class CellCache:
    """Composed cells with their revisions and costs, by their overrides, in one file.

    The file is that of one state of the code and the YAML files; with another it begins anew. Cells with a mixer of a
    user's own, whose file may change, are not kept.

    Args:
        outputs: the folder of runs that the file lies in.
    """

    def __init__(self, outputs: Path) -> None:
        self._path = outputs / FILE
        self._digest = _digest()
        self._known: dict[str, Any] = {}
        self._changed = False
        try:
            content = read_json(self._path, "")
            if content["digest"] == self._digest:
                self._known = dict(content["cells"])
        except (ReattendError, KeyError, TypeError, ValueError):
            pass  # none yet, or not whole: it is written anew

    def cell(self, row: str, column: str, overrides: tuple[str, ...]) -> tuple[Cell, RunCost | None]:
        """The composed cell and what a run of it costs; None where the cell is blocked."""
        key = " ".join(overrides)
        if key in self._known:
            record = self._known[key]
            config = from_dict(record["config"])
            cell = Cell(row, column, overrides, config, "", record["revisions"], tuple(record["metrics"]))
            return cell, RunCost(**record["cost"])
        cell = compose_cell(row, column, overrides)
        if cell.config is None:
            return cell, None
        try:
            cost = run_cost(cell.config)
        except ReattendError as error:
            return dataclasses.replace(cell, config=None, problem=str(error)), None
        if all(target.startswith("reattend.") for target in cell.revisions):
            record = {"config": to_dict(cell.config), "cost": asdict(cost)}
            record |= {"revisions": dict(cell.revisions), "metrics": cell.metrics}
            self._known[key], self._changed = record, True
        return cell, cost

    def save(self) -> None:
        """Writes what is new; another process may have written meanwhile, whose cells are then composed again."""
        if self._changed:
            write_json(self._path, {"digest": self._digest, "cells": self._known})


@cache
def _digest() -> str:
    """Of all code and YAML files."""
    package = Path(reattend.__file__).parent
    files = sorted([*package.rglob("*.py"), *config_dir().rglob("*.yaml")])
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()
