"""The command `scripts/prepare_data.py`: gets, generates, verifies and converts data, once for all runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from reattend.config import ConfigError, compose, read
from reattend.config.groups import members
from reattend.data.source import source_of
from reattend.errors import ReattendError, nearest

_USAGE = "python scripts/prepare_data.py task=lra/text (or lra, uea, ..., or all) [data.root=PATH] [key=value ...]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepares the data of the tasks that are named, each in its turn; returns the exit code.

    That is 2 for a mistake in the command line, 1 if the data of a task could not be prepared.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(given):
        print(_USAGE)
        return 0
    try:
        tasks, overrides = _tasks(given)
        configs = [read(compose([f"task={task}", *overrides])) for task in tasks]
        # Without a dataset: whatever set a person names.
        sources = {config.task.name: source_of(config) for config in configs if config.task.dataset is not None}
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2
    failed = []
    for name, source in sources.items():
        try:
            with _bar(name) as progress:
                source.prepare(_say, progress)
        except ReattendError as error:
            print(f"{error}\n", file=sys.stderr)
            failed.append(name)
    if failed:
        print(f"Not prepared: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _tasks(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of the tasks that are meant, and what else was given."""
    names = [a.removeprefix("task=") for a in arguments if a.startswith("task=") or "=" not in a]
    if not names:
        raise ConfigError(f"Which data? {_USAGE}")
    known = members("task")
    groups = {name.partition("/")[0] for name in known} | {"all"}
    tasks = []
    for name in names:
        found = [task for task in known if name in ("all", task, task.partition("/")[0])]
        if not found:
            hint = nearest(name, [*known, *groups])
            raise ConfigError(f"There is no task '{name}'.{hint} Tasks: python scripts/list.py task\n{_USAGE}")
        tasks += found
    return list(dict.fromkeys(tasks)), [a for a in arguments if "=" in a and not a.startswith("task=")]


def _say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Shows samples done and in all on a terminal."""
    if not sys.stdout.isatty():
        yield lambda done, total: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TimeRemainingColumn(), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
