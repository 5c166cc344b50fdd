"""The runs of a launch on disk, and what every worker on them can see: which are finished, failed or taken."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from reattend.config import from_dict, to_dict
from reattend.config.schema import RunConfig
from reattend.errors import ReattendError, RunInterruptedError
from reattend.runs.files import read_json, write_json
from reattend.runs.lease import Lease, RunClaimed, holder
from reattend.runs.process import is_running, place
from reattend.runs.result import FILE, read_result
from reattend.runs.status import FILE as STATUS
from reattend.runs.status import mark, read_status

if TYPE_CHECKING:
    from reattend.tables.runs import TableRun

LOG = "output.log"  # in a run's folder: what it printed
FAILURES = "failures.jsonl"  # in a run's folder: one line for each failure
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REMEDY = "start scripts/reproduce.py again, which writes a new one"


class WorkerDied(ReattendError):  # noqa: N818
    """The process of a run ended without a word, as with kill -9 or when memory runs out."""


@dataclass(frozen=True)
class Work:
    """A run to be done, as it was composed when the launch began.

    Attributes:
        label: row, column and seed.
        folder: of the run.
        config, overrides: what `reattend.train.run.run` takes.
    """

    label: str
    folder: Path
    config: RunConfig
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class RecordedFailure:
    """A line of `failures.jsonl`; `type` is the exception's class."""

    time: str
    type: str
    message: str


def work_of(run: TableRun) -> Work:
    """The work that a run which is not blocked makes."""
    assert run.config is not None
    assert run.folder is not None
    row, column = run.cells[0]
    return Work(f"{row} {column} seed {run.seed}", run.folder, run.config, run.overrides)


def write_worklist(path: Path, works: Sequence[Work]) -> None:
    """Saves configurations, not names: a table or YAML that is edited later changes nothing for these runs."""
    entries = [
        {"label": w.label, "folder": str(w.folder), "config": to_dict(w.config), "overrides": w.overrides}
        for w in works
    ]
    write_json(path, entries)


def read_worklist(path: Path) -> list[Work]:
    """What `write_worklist` saved."""
    return [
        Work(e["label"], Path(e["folder"]), from_dict(e["config"]), tuple(e["overrides"]))
        for e in read_json(path, _REMEDY)
    ]


def is_done(folder: Path) -> bool:
    """Whether the run has a whole result."""
    if not (folder / FILE).exists():
        return False
    try:
        read_result(folder)
    except ReattendError:
        return False
    return True


def failures(folder: Path) -> list[RecordedFailure]:
    """All failures of the run in all launches, interruptions not among them; a line cut off by a kill is left out.

    One that the run's status tells and no line yet counts too: the process that had the run gives it back before it
    writes the line, and another must not start it meanwhile.
    """
    path = folder / FAILURES
    text = path.read_text() if path.exists() else ""
    recorded = [RecordedFailure(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
    last = _last_failure(folder)
    return [*recorded, last] if last and not (recorded and recorded[-1].time >= last.time) else recorded


def _last_failure(folder: Path) -> RecordedFailure | None:
    """What the status tells, unless the run was interrupted, by a person or by a full disk."""
    try:
        status = read_status(folder)
    except ReattendError:
        return None  # damaged: it is set aside by the next command
    if status is None or status.error is None or status.error["type"] == RunInterruptedError.__name__:
        return None
    if any(os.strerror(code) in status.error["message"] for code in _FULL):
        return None
    return RecordedFailure(status.time, **status.error)


def record_failure(folder: Path, error: BaseException) -> None:
    """Adds to the run's failures and marks it failed; nothing if it has a whole result.

    Where another process has begun to try it again, the failure counts all the same and the status is that process's.
    """
    if is_done(folder):
        return  # killed between its result and its status
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with Lease.claim(folder):
            status = read_status(folder)
            if status is None or status.state != "failed":
                mark(folder, "failed", error)
    except RunClaimed:
        pass
    # After the status: a status that is younger than the last line is a failure of its own.
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    line = json.dumps(asdict(RecordedFailure(now, type(error).__name__, str(error)))) + "\n"
    with open(folder / FAILURES, "a") as file:
        file.write(line)


def taken_by(folder: Path) -> int | None:
    """The process of this machine that has the run, None if there is none; what other machines do is not seen."""
    owner = holder(folder) if folder.exists() else None
    if owner is None or owner.released or owner.place != place() or is_running(owner.pid, owner.process_start) is False:
        return None
    return owner.pid


def last_holder(folder: Path) -> int | None:
    """The process of this machine that had the run last and did not give it back, dead or alive."""
    owner = holder(folder) if folder.exists() else None
    return owner.pid if owner is not None and not owner.released and owner.place == place() else None


def is_disk_full(error: BaseException) -> bool:
    """Whether the error, or what caused it, is that nothing more can be written: every other run would fail too."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def set_damaged_aside(folder: Path) -> list[Path]:
    """Renames a result or status that cannot be read, so that its run goes on from its last checkpoint.

    Returns:
        the new names; none for a run that another process is at.
    """
    if not any(_is_damaged(folder, name) for name in (FILE, STATUS)):
        return []
    moved = []
    try:
        with Lease.claim(folder):
            for name in (FILE, STATUS):
                if _is_damaged(folder, name):
                    moved.append(folder / f"{name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
                    (folder / name).rename(moved[-1])
    except RunClaimed:
        return []
    return moved


def _is_damaged(folder: Path, name: str) -> bool:
    if not (folder / name).exists():
        return False
    try:
        read_result(folder) if name == FILE else read_status(folder)
    except ReattendError:
        return True
    return False
