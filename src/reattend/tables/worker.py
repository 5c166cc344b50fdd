"""Works through a saved list of runs: `python -m reattend.tables.worker <list> --first 1 --retries 2`.

Any number of workers, on any number of machines, may have the same list: each run is done by whoever claims it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from reattend.errors import ReattendError, RunInterruptedError
from reattend.runs.lease import LeaseLost, RunClaimed
from reattend.runs.process import end_with_parent
from reattend.tables.worklist import LOG, Work, failures, is_disk_full, is_done, read_worklist, record_failure, taken_by

INTERRUPTED = 130  # exit codes of a worker
DISK_FULL = 3

_PAUSE = 2.0  # seconds between two looks at runs that other processes have
_told_to_stop = threading.Event()


class DiskFull(ReattendError):  # noqa: N818
    """Nothing more can be written."""


def work_through(works: Sequence[Work], retries: int, *, first: int = 0, wait: bool = True) -> None:
    """Does every run that is not done, failed too often or taken by another process; failed ones again at the end.

    Args:
        works: the runs.
        retries: how often a run that failed is started again, over all launches.
        first: where in `works` to begin; workers that begin apart do not compete for the same run.
        wait: whether to stay until runs of other processes are done, and take over those whose process dies.

    Raises:
        KeyboardInterrupt: this process was told to stop; the run under way has a checkpoint.
        DiskFull: nothing more can be written.
    """
    left = [*works[first:], *works[:first]]
    while left := [work for work in left if not is_done(work.folder) and len(failures(work.folder)) <= retries]:
        started = [work for work in left if _do(work)]
        if not started:
            if not wait:
                return
            time.sleep(_PAUSE)


def _do(work: Work) -> bool:
    """Runs it, whatever comes out; False if another process has it."""
    if _told_to_stop.is_set():
        raise KeyboardInterrupt
    if taken_by(work.folder) is not None:
        return False
    # Imported here: a worker that finds everything done never loads torch.
    from reattend.train.run import run

    try:
        with _output_to(work.folder / LOG):
            run(work.config, work.overrides)
    except (RunClaimed, LeaseLost):
        return False
    except RunInterruptedError as error:
        raise KeyboardInterrupt from error
    except Exception as error:
        if is_disk_full(error):
            raise DiskFull(str(error)) from error
        record_failure(work.folder, error)
    return True


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Appends all that this process and those that it starts print to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", buffering=1) as log, contextlib.ExitStack() as stack:
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            saved = os.dup(descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            os.dup2(log.fileno(), descriptor)
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))
        try:
            yield
        except ReattendError as error:
            print(error, file=log)
            raise
        except Exception:
            traceback.print_exc(file=log)
            raise


@contextlib.contextmanager
def stopping_at_a_step() -> Iterator[None]:
    """Lets SIGTERM and the first Ctrl-C stop a run at its next step with a checkpoint, a second Ctrl-C at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop_gently)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _told_to_stop.clear()


def _stop(number: int, frame: FrameType | None) -> None:
    # Once only: the signal that a parent's death sends comes for each of its threads.
    first = not _told_to_stop.is_set()
    _told_to_stop.set()
    # While Lightning trains, its own handler stands before this one and stops the run.
    if first and signal.getsignal(signal.SIGTERM) is _stop:
        raise KeyboardInterrupt


def _stop_gently(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGTERM)


def _end_with(parent: int) -> None:
    """Lets this process stop, with a checkpoint, when the one that started it dies."""
    end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(INTERRUPTED)


def main() -> None:
    """A worker process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worklist", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--retries", type=int, required=True)
    parser.add_argument("--no-wait", action="store_true")
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    with stopping_at_a_step():
        try:
            _end_with(arguments.parent)
            works = read_worklist(arguments.worklist)
            work_through(works, arguments.retries, first=arguments.first % len(works), wait=not arguments.no_wait)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except DiskFull as error:
            print(error, file=sys.stderr)
            sys.exit(DISK_FULL)


if __name__ == "__main__":
    main()
