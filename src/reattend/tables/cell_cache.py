"""Cells that were composed before: planning a table again takes no composing, no counting and no torch."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import reattend
from reattend.config import config_dir, from_dict, to_dict
from reattend.config.revisions import own_code
from reattend.errors import ReattendError
from reattend.runs.files import read_json, write_json
from reattend.runs.process import end_with_parent
from reattend.tables.cells import Cell, compose_cell
from reattend.tables.cost import RunCost, run_cost
from reattend.tables.table_check import exists

FILE = Path("cache", "plan.json")

Costed = tuple[Cell, RunCost | None]

_LEAST_SHARE = 10  # cells of a process
_MOST_WORKERS = 16
_IMPORTED = ["reattend.tables.cell_cache", "reattend.backbones", "reattend.tasks", "reattend.efficiency.model_cost"]


class Wanted(NamedTuple):
    """Where a cell is in a table, and the overrides that it is composed of."""

    row: str
    column: str
    overrides: tuple[str, ...]

    @property
    def key(self) -> str:
        return " ".join(self.overrides)


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

    def cells(self, wanted: Sequence[Wanted]) -> list[Costed]:
        """The composed cells and what a run of each costs; None where a cell is blocked."""
        missing = {place.key: place for place in wanted if place.key not in self._known}
        possible = {key: place for key, place in missing.items() if all(map(exists, place.overrides))}
        made = {key: _make(place) for key, place in missing.items() if key not in possible}
        made |= zip(possible, _made(list(possible.values())), strict=True)
        for key, (cell, cost) in made.items():
            if cost is not None and cell.config is not None and not own_code(cell.config):
                record: dict[str, Any] = {"config": to_dict(cell.config), "cost": asdict(cost)}
                record |= {"revisions": dict(cell.revisions), "metrics": cell.metrics}
                self._known[key], self._changed = record, True
        return [self._placed(place, made) for place in wanted]

    def _placed(self, place: Wanted, made: Mapping[str, Costed]) -> Costed:
        if place.key in made:
            cell, cost = made[place.key]
            return dataclasses.replace(cell, row=place.row, column=place.column), cost
        record = self._known[place.key]
        config, metrics = from_dict(record["config"]), tuple(record["metrics"])
        cell = Cell(place.row, place.column, place.overrides, config, "", record["revisions"], metrics)
        return cell, RunCost(**record["cost"])

    def save(self) -> None:
        """Writes what is new; another process may have written meanwhile, whose cells are then composed again."""
        if self._changed:
            write_json(self._path, {"digest": self._digest, "cells": self._known})


def _made(places: Sequence[Wanted]) -> list[Costed]:
    """Composes and counts, in several processes where that is worth their start."""
    workers = min(len(os.sched_getaffinity(0)), len(places) // _LEAST_SHARE, _MOST_WORKERS)
    if workers < 2:
        return [_make(place) for place in places]
    # Neighbours have a column in common and so most of their composition.
    order = sorted(range(len(places)), key=lambda position: places[position].overrides[::-1])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["reattend.tables.cost", "reattend.backbones", "reattend.tasks", "reattend.efficiency.model_cost"]
    )
    share = math.ceil(len(places) / (4 * workers))
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(sys.path,)) as pool:
        found = list(pool.map(_make, [places[position] for position in order], chunksize=share))
    return [made for _, made in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


def _start_worker(path: Sequence[str]) -> None:
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command's own process stops them
    end_with_parent(signal.SIGKILL)


def _make(place: Wanted) -> Costed:
    cell = compose_cell(place.row, place.column, place.overrides)
    if cell.config is None:
        return cell, None
    try:
        return cell, run_cost(cell.config)
    except ReattendError as error:
        return dataclasses.replace(cell, config=None, problem=str(error)), None
    except Exception as error:
        if not own_code(cell.config):
            raise
        told = f"its own code failed on one sample: {type(error).__name__}: {error}. Alone: {cell.command}"
        return dataclasses.replace(cell, config=None, problem=told), None


@cache
def _digest() -> str:
    """Of all code and YAML files."""
    package = Path(reattend.__file__).parent
    files = sorted([*package.rglob("*.py"), *config_dir().rglob("*.yaml")])
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()
