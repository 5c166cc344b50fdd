"""`status.json`: how far a run has come. planned, running, then done or failed; a run may be started again."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from reattend.errors import ReattendError
from reattend.runs.files import read_json, write_json

State = Literal["planned", "running", "done", "failed"]
FILE = "status.json"
_REMEDY = "delete it and start the run again; its checkpoints stay and are used"


@dataclass(frozen=True)
class Status:
    """State of a run since `time` (UTC).

    Attributes:
        attempts: how often it was started.
        host: machine that said so, with its process id.
        error: of a failed run, {"type": exception class, "message": text}.
    """

    state: State
    attempts: int
    host: str
    pid: int
    time: str
    error: Mapping[str, str] | None = None


def read_status(folder: Path) -> Status | None:
    """The run's status; None if it has none yet.

    Raises:
        ReattendError: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    content = read_json(path, _REMEDY)
    names = {field.name for field in fields(Status)}
    if not isinstance(content, dict) or content.keys() != names or content["state"] not in get_args(State):
        raise ReattendError(f"{path} is no status of a run (expected the keys {', '.join(sorted(names))}): {_REMEDY}")
    return Status(**content)


def mark(folder: Path, state: State, error: BaseException | None = None) -> Status:
    """Writes the run's status; only the holder of the folder's lease may say more than "planned".

    Each "running" counts an attempt. "planned" leaves a status that is there already as it is.

    Args:
        folder: of the run.
        state: the new one.
        error: why it failed; for "failed" only.
    """
    if (error is not None) != (state == "failed"):
        raise ValueError("a failed run has an error, and no other has one")
    before = read_status(folder)
    if state == "planned" and before is not None:
        return before
    status = Status(
        state=state,
        attempts=(before.attempts if before else 0) + (state == "running"),
        host=socket.gethostname(),
        pid=os.getpid(),
        time=datetime.now(UTC).isoformat(timespec="microseconds"),
        error=None if error is None else {"type": type(error).__name__, "message": str(error)},
    )
    write_json(folder / FILE, asdict(status))
    return status
