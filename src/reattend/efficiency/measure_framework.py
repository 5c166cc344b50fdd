"""`scripts/measure.py framework`: a run beside a bare PyTorch loop."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from reattend.config import check_overrides, check_run, compose, normalise_overrides, read
from reattend.config.limits import Count
from reattend.efficiency.arguments import read_own
from reattend.efficiency.framework import bare_seconds, framework_seconds
from reattend.efficiency.page import Page
from reattend.efficiency.setting import setting
from reattend.train.devices import prepare_cpu
from reattend.train.execute import plan

USAGE = """\
python scripts/measure.py framework [rounds=5] [any override]
    seconds per epoch and per evaluation, as ratios to a bare PyTorch loop"""


@dataclass(frozen=True)
class Repetition:
    """How often a run is measured against a bare loop."""

    rounds: Count = 5


def measure_framework(arguments: Sequence[str]) -> Page:
    """Seconds per epoch and evaluation of a run and of a bare loop, alternating."""
    repetition, rest = read_own(Repetition, arguments, USAGE)
    check_overrides(rest)
    with tempfile.TemporaryDirectory() as scratch:
        config = read(compose([f"outputs={scratch}", "recipe.epochs=10", "trainer=cpu", *normalise_overrides(rest)]))
        check_run(config)
        prepare_cpu(config.trainer)
        planned = plan(config)
        bare_seconds(planned)
        measured: dict[str, list[tuple[float, float]]] = {"bare loop": [], "reattend": []}
        for index in range(repetition.rounds):
            for name, seconds in (
                ("bare loop", bare_seconds(planned)),
                ("reattend", framework_seconds(planned, Path(scratch, str(index)))),
            ):
                measured[name].append((statistics.median(seconds[0]), statistics.median(seconds[1])))
    conditions = setting(torch.device("cpu"), config.trainer.keep_freed_memory)
    title = f"{config.attention.name} on {config.task.name}; {conditions}"
    page = Page(title, ("", "s per epoch", "ratio", "s per evaluation", "ratio"))
    for name, values in measured.items():
        cells: list[str] = []
        for part in (0, 1):
            ratio = [own[part] / bare[part] for own, bare in zip(values, measured["bare loop"], strict=True)]
            cells += [f"{statistics.median(v[part] for v in values):.3f}", f"{statistics.median(ratio):.2f}"]
        page.add(name, cells, {"seconds": values})
    return page
