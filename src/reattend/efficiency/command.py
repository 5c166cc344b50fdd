"""The command `scripts/measure.py`."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.table import Table

from reattend.attention import MixerSpec
from reattend.config import build_mixer_factory, check_overrides, check_run, compose, normalise_overrides, read
from reattend.config.binding import bind_dataclass
from reattend.config.limits import Count
from reattend.config.problems import refuse
from reattend.efficiency.framework import bare_seconds, framework_seconds
from reattend.efficiency.mixers import build_all, forward_backward
from reattend.efficiency.timing import Timing, compare
from reattend.errors import ReattendError
from reattend.train.devices import prepare_cpu
from reattend.train.execute import plan

USAGE = """\
python scripts/measure.py mixers [attention=softmax,bn,sh,bn_sh] [length=4096] [dim=64] [heads=2] [batch_size=4]
    [rounds=10] [any override]: forward and backward of whole layers, as ratios to fused softmax
python scripts/measure.py framework [rounds=5] [any override]: seconds per epoch and per evaluation, as ratios to a bare
    PyTorch loop"""
UNFUSED = "softmax, unfused"
Own = TypeVar("Own", "Shape", "Repetition")


@dataclass(frozen=True)
class Shape:
    """What layers are measured at."""

    length: Count = 4096
    dim: Count = 64
    heads: Count = 2
    batch_size: Count = 4
    rounds: Count = 10


@dataclass(frozen=True)
class Repetition:
    """How often a run is measured against a bare loop."""

    rounds: Count = 5


def main(arguments: Sequence[str]) -> None:
    """Measures what is asked for and prints a table."""
    measures: Mapping[str, Callable[[Sequence[str]], Table]] = {
        "mixers": measure_mixers,
        "framework": measure_framework,
    }
    if not arguments or arguments[0] not in measures:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    try:
        Console().print(measures[arguments[0]](arguments[1:]))
    except ReattendError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def measure_mixers(arguments: Sequence[str]) -> Table:
    """Seconds of each attention and its ratio to fused softmax in the same round; scales alternate 1, 2 by default."""
    shape, rest = _own(Shape, arguments)
    names = dict(map(_split, rest)).get("attention", "softmax,bn,sh,bn_sh").split(",")
    rest = [argument for argument in rest if _split(argument)[0] != "attention"]
    check_overrides(rest)
    scales = [1 + head % 2 for head in range(shape.heads)]
    common = [
        f"backbone.options.dim={shape.dim}",
        f"backbone.options.num_heads={shape.heads}",
        f"scales.value={scales}",
        "recipe.attention_dropout=0",
        *normalise_overrides(rest),
    ]
    wanted = {name: [f"attention={name}"] for name in dict.fromkeys(["softmax", *names])}
    wanted[UNFUSED] = ["attention=softmax", "++attention.options.kernel.fused=false"]
    factories = {}
    for name, overrides in wanted.items():
        config = read(compose([*overrides, *common]))
        check_run(config)
        factories[name] = build_mixer_factory(config)
    prepare_cpu(config.trainer)
    spec = MixerSpec(dim=shape.dim, num_heads=shape.heads, max_length=shape.length)
    mixers = build_all(factories, spec)
    calls = {n: forward_backward(m, shape.batch_size, shape.length, shape.dim) for n, m in mixers.items()}
    title = (
        f"forward + backward of a layer: length {shape.length}, dim {shape.dim}, {shape.heads} heads, batch"
        f" {shape.batch_size}, scales {scales}; {_setting(config.trainer.keep_freed_memory)}"
    )
    return _table(title, "fused softmax", compare(calls, "softmax", shape.rounds))


def measure_framework(arguments: Sequence[str]) -> Table:
    """Seconds per epoch and evaluation of a run and of a bare loop, alternating."""
    repetition, rest = _own(Repetition, arguments)
    check_overrides(rest)
    table = Table(title="")
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
    table.title = f"{config.attention.name} on {config.task.name}; {_setting(config.trainer.keep_freed_memory)}"
    for column in ("", "s per epoch", "ratio", "s per evaluation", "ratio"):
        table.add_column(column, justify="left" if column == "" else "right")
    for name, values in measured.items():
        cells = [name]
        for part in (0, 1):
            ratio = [own[part] / bare[part] for own, bare in zip(values, measured["bare loop"], strict=True)]
            cells += [f"{statistics.median(v[part] for v in values):.3f}", f"{statistics.median(ratio):.2f}"]
        table.add_row(*cells)
    return table


def _table(title: str, baseline: str, timings: Mapping[str, Timing]) -> Table:
    table = Table(title=title)
    for column in ("attention", "ms", f"ratio to {baseline}", "quartiles"):
        table.add_column(column, justify="left" if column == "attention" else "right")
    for name, timing in timings.items():
        table.add_row(name, f"{1e3 * timing.seconds:.0f}", f"{timing.ratio:.2f}", f"{timing.low:.2f}–{timing.high:.2f}")
    return table


def _setting(keep_freed_memory: bool) -> str:
    kept = "kept" if keep_freed_memory else "returned to the kernel"
    return f"{torch.get_num_threads()} thread(s), torch {torch.__version__}, freed memory {kept}"


def _split(argument: str) -> tuple[str, str]:
    key, _, value = argument.partition("=")
    return key, value


def _own(kind: type[Own], arguments: Sequence[str]) -> tuple[Own, list[str]]:
    """The command's own arguments, checked, and the rest, which are overrides."""
    own = {name: _number(value) for name, value in map(_split, arguments) if name in kind.__dataclass_fields__}
    problems: list[str] = []
    bound = bind_dataclass(kind, own, "", problems)
    refuse(problems, USAGE)
    return bound, [argument for argument in arguments if _split(argument)[0] not in own]


def _number(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() else text
