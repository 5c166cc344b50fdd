"""The command `scripts/runs.py`: what there is, what can go, what differs, what travels."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from rich import box
from rich.console import Console
from rich.table import Table

from reattend.errors import ReattendError, nearest
from reattend.runs.catalogue import RunEntry, State, find_run, run_entries
from reattend.runs.clean import KINDS, removable, remove
from reattend.runs.diff import diff_runs
from reattend.runs.exchange import Exchanged, export_runs, import_runs
from reattend.runs.files import size_text

USAGE = """python scripts/runs.py COMMAND [key=value]
  status  [task= attention= state=]            every run: state, attempts, metrics, size, why it failed
  clean   [confirm=checkpoints,failed]         what can go; removes what you confirm
  diff    RUN RUN                              why two runs have different numbers; folders or fingerprints
  export  to=FOLDER [task= attention=]         finished runs without weights, to be committed or sent
  import  from=FOLDER [to=FOLDER]              takes exported runs in
All take outputs=FOLDER, by default outputs."""
_FILTERS = ("task", "attention", "state")


def main(arguments: Sequence[str]) -> int:
    """Runs one of the commands; returns the exit code."""
    commands: dict[str, tuple[Callable[[list[str], Mapping[str, str]], int], tuple[str, ...]]] = {
        "status": (_status, _FILTERS),
        "clean": (_clean, (*_FILTERS, "confirm")),
        "diff": (_diff, ()),
        "export": (_export, (*_FILTERS, "to")),
        "import": (_import, ("from", "to")),
    }
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if arguments else 2
    try:
        if arguments[0] not in commands:
            raise ReattendError(f"There is no command '{arguments[0]}'.{nearest(arguments[0], commands)}\n{USAGE}")
        command, keys = commands[arguments[0]]
        names, options = _read(arguments[1:], ("outputs", *keys))
        return command(names, options)
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2


def _read(arguments: Sequence[str], keys: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    options = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key not in keys:
            raise ReattendError(f"{argument}: no such key.{nearest(key, keys)} Valid: {', '.join(keys)}.")
        if equals:
            options[key] = value
    return [argument for argument in arguments if "=" not in argument], options


def _root(options: Mapping[str, str]) -> Path:
    return Path(options.get("outputs", "outputs"), "runs")


def _entries(options: Mapping[str, str]) -> list[RunEntry]:
    root = _root(options)
    found = list(run_entries(root))
    wanted = {key: options[key] for key in _FILTERS if key in options}
    if not found:
        raise ReattendError(f"There are no runs in {root}. Others: outputs=FOLDER")
    for key, value in wanted.items():
        known = get_args(State) if key == "state" else sorted({_value(entry, key) for entry in found})
        if value not in known:
            raise ReattendError(
                f"{key}={value}: no run has this {key}.{nearest(value, known)} There are: {', '.join(known)}."
            )
    return [entry for entry in found if all(_value(entry, key) == value for key, value in wanted.items())]


def _value(entry: RunEntry, key: str) -> str:
    *task, attention, _, _ = entry.name.split("/")
    return {"task": "/".join(task), "attention": attention, "state": entry.state}[key]


def _status(names: list[str], options: Mapping[str, str]) -> int:
    entries = _entries(options)
    console = _console()
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("run", overflow="fold")
    for name in ("state", "starts", "result", "size", "age"):
        shown.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        shown.add_row(
            entry.name, entry.state, str(entry.attempts), _metric(entry), size_text(entry.bytes), _age(entry.changed)
        )
    console.print(shown)
    for entry in entries:
        if entry.reason:
            console.print(f"{entry.state}: {entry.name}: {entry.reason}", markup=False, highlight=False, soft_wrap=True)
    counts = Counter(entry.state for entry in entries)
    total = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none of these"
    console.print(f"{len(entries)} runs: {total}; {size_text(sum(entry.bytes for entry in entries))}")
    return 0


def _metric(entry: RunEntry) -> str:
    if entry.result is None:
        return ""
    name = f"test/{entry.result.config['task']['metric']}"
    value = entry.result.metrics["last"].metrics.get(name)
    return "" if value is None else f"{name.removeprefix('test/')} {value:.4g}"


def _clean(names: list[str], options: Mapping[str, str]) -> int:
    found = removable(_entries(options), _root(options).with_name("launches"))
    confirmed = options.get("confirm", "").split(",") if "confirm" in options else None
    for name in confirmed or []:
        if name not in KINDS:
            raise ReattendError(f"confirm={name}: no such kind.{nearest(name, KINDS)} There are: {', '.join(KINDS)}.")
    if not found:
        print("Nothing can go. Results and models of finished runs are kept, and all of runs that can go on.")
    for what in found:
        print(f"{what.kind}: {len(what.paths)} of {size_text(what.bytes)}: {KINDS[what.kind]}")
        if what.kind in confirmed if confirmed is not None else _asked(what.kind):
            print(f"  removed {remove(what)}")
        else:
            print("  kept")
    return 0


def _asked(kind: str) -> bool:
    if not sys.stdin.isatty():
        return False
    return input(f"  remove {kind}? [y/N] ").strip().lower() in ("y", "yes")


def _diff(names: list[str], options: Mapping[str, str]) -> int:
    if len(names) != 2:
        raise ReattendError(f"diff takes two runs, found {len(names)}.\n{USAGE}")
    roots = [_root(options), Path("results", "runs")]
    left, right = (find_run(name, roots) for name in names)
    made = diff_runs(left, right)
    console = _console()
    console.print(f"left:  {left}\nright: {right}", highlight=False, soft_wrap=True)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("what", "left", "right", "changes numbers"):
        shown.add_column(name, overflow="fold")
    for difference in made.differences:
        shown.add_row(difference.what, difference.left, difference.right, "yes" if difference.matters else "no")
    for name, (ours, theirs) in made.metrics.items():
        shown.add_row(name, f"{ours:.6g}", f"{theirs:.6g}", "")
    console.print(shown)
    console.print(made.conclusion, highlight=False, soft_wrap=True)
    return 0


def _export(names: list[str], options: Mapping[str, str]) -> int:
    if "to" not in options:
        raise ReattendError("export to which folder? to=results/runs is where reports look, too.")
    return _tell(export_runs(_entries(options), Path(options["to"])))


def _import(names: list[str], options: Mapping[str, str]) -> int:
    if "from" not in options:
        raise ReattendError("import from which folder? from=FOLDER")
    return _tell(import_runs(Path(options["from"]), Path(options.get("to") or _root(options))))


def _tell(made: Exchanged) -> int:
    print(f"{len(made.new)} new, {len(made.equal)} there already, {len(made.refused)} refused")
    for reason in made.refused:
        print(f"  {reason}")
    return 1 if made.refused else 0


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 140)


def _age(changed: float) -> str:
    hours = (time.time() - changed) / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} d"
