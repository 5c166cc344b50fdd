"""Where the numbers of a page come from: what the runs share, where they differ, and the file of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reattend.runs.result import FILE
from reattend.tables.aggregate import number_of
from reattend.tables.evidence import Evidence
from reattend.tables.render.commands import train_command
from reattend.tables.render.numbers import duration, plain
from reattend.tables.render.searched import searches, trials
from reattend.tables.render.view import column_label, label, row_label
from reattend.tables.results import Found
from reattend.tables.runs import TableRun
from reattend.tables.table import Value


@dataclass(frozen=True)
class Fact:
    """A name and what it is in the runs; `mixed` where they should agree and do not."""

    name: str
    values: tuple[str, ...]
    mixed: bool = False


@dataclass(frozen=True)
class Lacking:
    """Runs that are not there: in which state, of which cells, why, and the commands that run them."""

    state: str
    cells: str
    count: int
    reason: str
    command: str


def facts(evidence: Evidence) -> list[Fact]:
    """What was run, on what data, where and with which code."""
    results = [found.result for found in evidence.found]
    if not results:
        return []
    made = [
        _fact("scale", (r.scale for r in results), mixed=True),
        _fact("protocol", (r.protocol for r in results), mixed=True),
        _fact("fidelity", (_fidelity(r.fidelity) for r in results)),
        _fact("data", (r.data for r in results), mixed=True),
        _fact("recipe", (f"{r.task}: {_recipe(r.config)}" for r in results)),
        _fact(
            "data checksums (SHA-256)", (f"{r.task}, {k}: {v}" for r in results for k, v in r.data_checksums.items())
        ),
        _fact("hardware", (r.device for r in results), mixed=True),
        _fact("precision", (str(r.config["trainer"]["precision"]) for r in results), mixed=True),
        _fact("commit", (r.git_commit or "unknown: no repository" for r in results), mixed=True),
    ]
    searched = tuple(f"{row_label(evidence, row)}: {told}" for row, told in searches(evidence))
    if searched:
        made.append(Fact("search", searched, mixed=len(trials(evidence)) > 1))
    packages = {name for r in results for name in r.versions}
    versions = {name: Counter(r.versions.get(name, "absent") for r in results) for name in packages}
    same = ", ".join(f"{name} {next(iter(found))}" for name, found in sorted(versions.items()) if len(found) == 1)
    made.append(Fact("versions", (same,)))
    made += [
        _fact(f"version of {name}", found.elements(), mixed=True)
        for name, found in sorted(versions.items())
        if len(found) > 1
    ]
    seconds = [r.seconds for r in results]
    made.append(Fact("training time", (f"{duration(sum(seconds))} in {len(seconds)} runs",)))
    return made


def lacking(evidence: Evidence) -> list[Lacking]:
    """Runs of the wanted seeds that are not done: those of a cell together, blocked ones by their reason."""
    groups: dict[tuple[str, str, str], list[TableRun]] = {}
    for run in evidence.runs:
        if run.state != "done":
            key = "" if run.state == "blocked" else _cells(evidence, run)
            groups.setdefault((run.state, run.reason, key), []).append(run)
    return [
        Lacking(
            state,
            "; ".join(dict.fromkeys(_cells(evidence, run) for run in runs)),
            len(runs),
            reason,
            "" if state in ("blocked", "running") else train_command(runs),
        )
        for (state, reason, _), runs in groups.items()
    ]


def appendix_head(evidence: Evidence) -> list[str]:
    """Column names of `appendix`."""
    heads = ["row", "column", "seed"]
    for name, value in evidence.request.table.values.items():
        heads.append(f"{label(name, value)}{f' ({value.unit})' if value.unit else ''}")
        if value.of_selected_epoch:
            heads.append(f"{label(name, value)}, last epoch")
    return [*heads, "parameters", "training FLOPs per sample", "time", "device", "commit"]


def appendix(evidence: Evidence, folder: Path) -> Iterator[tuple[list[str], str]]:
    """For each run of a cell its numbers, and its result file relative to `folder`."""
    for cell in evidence.cells:
        known: dict[str, Found] = {}
        for place, shown in evidence.places.items():
            if (place.row, place.column) == (cell.row, cell.column) and shown.measured:
                known |= {found.result.fingerprint: found for found in shown.measured.runs}
        for found in sorted(known.values(), key=lambda found: found.result.seed):
            result = found.result
            line = [row_label(evidence, cell.row), column_label(evidence, cell.column), str(result.seed)]
            for value in evidence.request.table.values.values():
                line.append(_number(found, value))
                if value.of_selected_epoch:
                    line.append(_number(found, replace(value, selection="last")))
            line += [f"{result.parameters:,}", "–" if result.training_flops is None else f"{result.training_flops:.3g}"]
            line += [duration(result.seconds), result.device, (result.git_commit or "unknown")[:12]]
            yield line, Path(os.path.relpath(found.folder / FILE, folder)).as_posix()


def _number(found: Found, value: Value) -> str:
    try:
        return plain(number_of(found.result, value), value.digits)
    except KeyError:
        return "–"


def _fact(name: str, values: Iterable[str], mixed: bool = False) -> Fact:
    counts = Counter(values)
    if len(counts) == 1:
        return Fact(name, tuple(counts))
    shown = sorted(counts)
    return Fact(name, tuple(f"{value} ({counts[value]} runs)" for value in shown) if mixed else tuple(shown), mixed)


def _fidelity(switches: Mapping[str, Any]) -> str:
    others = ", ".join(f"{name}={value}" for name, value in _flat(switches) if name != "name")
    return f"{switches['name']}: {others}" if others else str(switches["name"])


def _flat(switches: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in sorted(switches.items()):
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _recipe(config: Mapping[str, Any]) -> str:
    recipe = config["recipe"]
    optimizer = recipe["optimizer"]
    return (
        f"{recipe['name']}, {optimizer['name']}, lr {optimizer['lr']:g}, batch {recipe['batch_size']}, "
        f"{recipe['epochs']} epochs"
    )


def _cells(evidence: Evidence, run: TableRun) -> str:
    return "; ".join(f"{row_label(evidence, row)}, {column_label(evidence, column)}" for row, column in run.cells)
