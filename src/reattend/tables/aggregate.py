"""From result files to the numbers of a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from reattend.runs.result import Result
from reattend.tables.evidence import Measured
from reattend.tables.results import Found
from reattend.tables.table import OF_A_RUN, Place, Table, Value

# The epoch that a number is taken from, by protocol.
SELECTED_BY = {"published": "best_on_test", "strict": "best_on_validation"}


def number_of(result: Result, value: Value) -> float:
    """`value` of one run, in the table's unit.

    Raises:
        KeyError: the run does not have it; the message says what it lacks.
    """
    if value.metric in OF_A_RUN:
        return value.factor * _of_a_run(result, value.metric)
    rule = "last" if value.selection == "last" else SELECTED_BY[result.protocol]
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
    steps = result.metrics["last"].step
    figures: dict[str, float | None] = {
        "parameters": result.parameters,
        "flops": result.flops,
        "training_flops": result.training_flops,
        "peak_memory": result.peak_memory,
        "seconds": result.seconds,
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
    table: Table, row: str, value: str, cells: Mapping[Place, Measured]
) -> tuple[Measured | None, str]:
    """At each seed the mean over all columns of the table, for seeds that all of them have."""
    parts = [cells.get(Place(row, column, value)) for column in table.columns]
    missing = [column for column, part in zip(table.columns, parts, strict=True) if part is None]
    if missing:
        return None, f"a mean over all columns, of which {len(missing)} have no number: {', '.join(missing)}"
    known = [part for part in parts if part is not None]
    seeds = sorted(set.intersection(*(set(part.by_seed) for part in known)))
    if not seeds:
        return None, "no seed has been run in all columns"
    by_seed = {seed: statistics.mean(part.by_seed[seed] for part in known) for seed in seeds}
    runs = tuple(run for part in known for run in part.runs if run.result.seed in by_seed)
    return Measured(by_seed, runs), ""


def relative_to(measured: Measured, baseline: Measured) -> tuple[Measured | None, str]:
    """Each number divided by the baseline's mean, if all runs of both were on one kind of device."""
    devices = {run.result.device for run in (*measured.runs, *baseline.runs)}
    if len(devices) > 1:
        return None, f"measured on different devices: {', '.join(sorted(devices))}"
    if baseline.mean == 0:
        return None, "the baseline is zero"
    return Measured({seed: x / baseline.mean for seed, x in measured.by_seed.items()}, measured.runs), ""
