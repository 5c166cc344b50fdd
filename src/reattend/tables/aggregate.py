"""From result files to the numbers of a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence

from reattend.runs.result import Result
from reattend.tables.evidence import Measured
from reattend.tables.results import Found
from reattend.tables.table import OF_A_RUN, Place, Table, Value

# The epoch that a number is taken from, by what the protocol selects on.
SELECTED_BY = {"test": "best_on_test", "validation": "best_on_validation"}


def number_of(result: Result, value: Value) -> float:
    """`value` of one run, in the table's unit.

    Raises:
        KeyError: the run does not have it; the message says what it lacks.
    """
    if value.metric in OF_A_RUN:
        return value.factor * _of_a_run(result, value.metric)
    rule = "last" if value.selection == "last" else SELECTED_BY[result.config["protocol"]["selection"]]
    if rule not in result.metrics:
        raise KeyError(f"the run has no epoch {rule.replace('_', ' ')}")
    metrics = result.metrics[rule].metrics
    if value.metric not in metrics:
        raise KeyError(f"the run has no {value.metric}, it has {', '.join(sorted(metrics))}")
    number = metrics[value.metric]
    if not math.isfinite(number):
        raise KeyError(f"{value.metric} is {number}")
    return value.factor * number


def _of_a_run(result: Result, metric: str) -> float:
    epochs, steps = result.metrics["last"].epoch, result.metrics["last"].step
    figures: dict[str, float | None] = {
        "parameters": result.parameters,
        "flops": result.flops,
        "training_flops": result.training_flops,
        "peak_memory": result.peak_memory,
        "seconds": result.seconds,
        "seconds_per_epoch": result.seconds / epochs if epochs else None,
        "seconds_per_step": result.seconds / steps if steps else None,
        "steps_per_second": steps / result.seconds if result.seconds else None,
    }
    found = figures[metric]
    if found is None:
        raise KeyError(f"{metric} of the run is not known")
    return found


def measure(found: Sequence[Found], value: Value) -> tuple[Measured | None, str]:
    """`value` over the runs of a cell, and why it is None or lacks some of them."""
    by_seed, runs, lacking = {}, [], []
    for run in found:
        try:
            by_seed[run.result.seed] = number_of(run.result, value)
        except KeyError as problem:
            lacking.append(f"seed {run.result.seed}: {problem.args[0]}")
            continue
        runs.append(run)
    if not found:
        return None, "no finished run"
    return Measured(by_seed, tuple(runs)) if by_seed else None, "; ".join(lacking)


def mean_over_columns(
    table: Table, row: str, value: str, cells: Mapping[Place, Measured], columns: Collection[str]
) -> tuple[Measured | None, str]:
    """At each seed the mean over all columns of the table, and why there is none or which seeds it lacks.

    Args:
        table: whose columns these are.
        row: of the table.
        value: of the table.
        cells: what is measured.
        columns: those that have been looked at; without the others there is no mean.
    """
    parts = {column: cells.get(Place(row, column, value)) for column in table.columns}
    known = {column: part for column, part in parts.items() if part is not None}
    without = [column for column in parts if column in columns and column not in known]
    absent = [column for column in parts if column not in columns]
    if without or absent:
        told = [f"{_count(without, 'has', 'have')} no number: {', '.join(without)}"] if without else []
        told += [f"{_count(absent, 'is', 'are')} not on this page"] if absent else []
        return None, f"a mean over all {len(parts)} columns, of which {' and '.join(told)}"
    seeds = sorted(set.intersection(*(set(part.by_seed) for part in known.values())))
    if not seeds:
        return None, "no seed has been run in all columns"
    by_seed = {seed: statistics.mean(part.by_seed[seed] for part in known.values()) for seed in seeds}
    runs = tuple(run for part in known.values() for run in part.runs if run.result.seed in by_seed)
    return Measured(by_seed, runs), _dropped(known, seeds)


def _count(names: Sequence[str], one: str, several: str) -> str:
    return f"{len(names)} {one if len(names) == 1 else several}"


def _dropped(parts: Mapping[str, Measured], seeds: Sequence[int]) -> str:
    dropped = sorted({seed for part in parts.values() for seed in part.by_seed} - set(seeds))
    if not dropped:
        return ""
    lacking = [column for column, part in parts.items() if set(dropped) - set(part.by_seed)]
    shown = ", ".join(map(str, dropped))
    return f"the mean leaves out seed{'s' if len(dropped) > 1 else ''} {shown}, not in {', '.join(lacking)}"
