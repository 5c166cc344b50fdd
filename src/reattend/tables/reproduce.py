"""The command `scripts/reproduce.py`: plans a table, or all, or runs what they lack and writes their pages."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from reattend.config import ConfigError, compose, read
from reattend.errors import ReattendError, nearest
from reattend.tables.request import CHOICE, KEYS, Request, read_requests

OPTIONS = KEYS["scripts/reproduce.py"]
USAGE = f"""\
python scripts/reproduce.py table=NAME [key=value ...]   runs what a table lacks, then writes its page
{CHOICE}
  plan=true                     what it would take; nothing starts. table=all: a line for each table
  launcher=processes workers=2  or local, slurm, slurm_4xa100, slurm_8xv100
  retries=2                     how often a failed run is started again, over all launches
  report=false                  no page at the end"""

_INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Reads the command line and does what it asks.

    Returns:
        the exit code: 0, 1 if a run failed or could not be started, 2 for a mistake, 130 if it was told to stop.
    """
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    # A user's own mixer lies beside the command, not in the environment.
    sys.path.insert(0, os.getcwd())
    try:
        requests = read_requests(arguments, OPTIONS)
        options = requests[0].options
        plan, report = _flag(options, "plan", False), _flag(options, "report", True)
        workers, retries = _number(options, "workers", 1), _number(options, "retries", 0)
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2
    if note := read(compose(requests[0].extra)).launcher.note:
        print(f"Note: {note}.")
    if plan:
        return _plan(requests)
    codes = []
    for request in requests:
        if len(requests) > 1:
            print(f"== {request.name}")
        codes.append(_run(request, workers, 2 if retries is None else retries, report))
        if codes[-1] == _INTERRUPTED:
            break
    return max(codes)


def _plan(requests: Sequence[Request]) -> int:
    from reattend.tables.plan_page import show, show_all

    try:
        if len(requests) > 1:
            show_all(requests)
        else:
            show(requests[0])
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _run(request: Request, workers: int | None, retries: int, report: bool) -> int:
    # Imported here: a mistake in the command line is told at once.
    from reattend.tables.execute import execute

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcome = execute(request, retries, workers)
        print("\n".join(outcome.lines))
        if report:
            from reattend.tables.report import write

            write(request)
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on.", file=sys.stderr)
        return _INTERRUPTED
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 1 if outcome.failed or outcome.left or not any(run.state == "done" for run in outcome.runs) else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    known = {"true": True, "false": False}
    given = options.get(name)
    if given is None:
        return default
    if given.lower() not in known:
        raise ReattendError(f"{name}={given}: true or false.{nearest(given, known)}")
    return known[given.lower()]


def _number(options: Mapping[str, str], name: str, least: int) -> int | None:
    given = options.get(name)
    if given is None:
        return None
    if not given.isdecimal() or int(given) < least:
        raise ReattendError(f"{name}={given}: a whole number, at least {least}.")
    return int(given)
