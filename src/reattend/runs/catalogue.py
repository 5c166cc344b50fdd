"""All run folders below an output folder, and how far each is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reattend.errors import ReattendError
from reattend.runs.lease import LIMIT, holder
from reattend.runs.process import is_running, place
from reattend.runs.result import FILE as RESULT
from reattend.runs.result import Result, read_result
from reattend.runs.status import FILE as STATUS
from reattend.runs.status import read_status

State = Literal["done", "running", "interrupted", "failed", "planned"]
SET_ASIDE = "before-"  # folders inside a run's, of files that rerun=true moved away


@dataclass(frozen=True)
class RunEntry:
    """One run folder.

    Attributes:
        folder: `<root>/<task>/<attention>/<backbone>/s<seed>-<fingerprint>`.
        name: the folder below the root.
        state: "running" has a live holder; "interrupted" was started, or finished with a result that is missing or
            cannot be read, and has none.
        attempts: how often it was started.
        reason: why it failed, or which of its files is missing or damaged.
        result: of a finished run.
        bytes: of all its files.
        changed: when a file of it was last written, in seconds since the epoch.
    """

    folder: Path
    name: str
    state: State
    attempts: int
    reason: str
    result: Result | None
    bytes: int
    changed: float


def run_entries(root: Path) -> Iterator[RunEntry]:
    """Every run below `root` (`<outputs>/runs`), in the order of their names."""
    for folder in sorted({path.parent for name in (STATUS, RESULT) for path in root.glob(f"**/{name}")}):
        if not folder.name.startswith(SET_ASIDE):
            yield run_entry(folder, root)


def run_entry(folder: Path, root: Path) -> RunEntry:
    """What the files of one run say."""
    state, attempts, reason, result = state_of(folder)
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    changed = max((found.st_mtime for found in files), default=time.time())
    return RunEntry(
        folder,
        folder.relative_to(root).as_posix(),
        state,
        attempts,
        reason,
        result,
        sum(f.st_size for f in files),
        changed,
    )


def state_of(folder: Path) -> tuple[State, int, str, Result | None]:
    """State, attempts, reason and result of a run, as in its `RunEntry`."""
    try:
        status, damage = read_status(folder), ""
    except ReattendError as error:
        status, damage = None, str(error)
    attempts = status.attempts if status else 1
    try:
        result, lacking = read_result(folder), ""
    except ReattendError as error:
        result, lacking = None, str(error)
    if result is not None and (status is None or status.state == "done" or not is_held(folder)):
        return "done", attempts, "", result
    if status is not None and status.state == "planned":
        return "planned", attempts, "", None
    if is_held(folder):
        return "running", attempts, "", None
    if status is None or status.state == "done":
        return "interrupted", attempts, damage or lacking, None
    failure = status.error or {"type": "", "message": ""}
    if status.state == "failed" and failure["type"] != "RunInterruptedError":
        return "failed", status.attempts, f"{failure['type']}: {failure['message']}", None
    return "interrupted", status.attempts, "", None


def is_held(folder: Path) -> bool:
    """Whether a process has claimed the folder and still lives, as far as can be said without waiting."""
    owner = holder(folder)
    if owner is None or owner.released:
        return False
    if owner.place == place():
        running = is_running(owner.pid, owner.process_start)
        if running is not None:
            return running
    beats = [path.stat().st_mtime for path in folder.glob("lease.*")]
    return bool(beats) and time.time() - max(beats) <= LIMIT


def find_run(name: str, roots: list[Path]) -> Path:
    """The folder of a run that is named by its path, by its end as `status` prints it, or by its fingerprint's first
    digits.

    Raises:
        ReattendError: there is none, or several.
    """
    path = Path(name)
    if (path / RESULT).exists() or (path / STATUS).exists():
        return path
    found = [
        Path(folder)
        for root in roots
        for folder, _, files in os.walk(root)
        if {RESULT, STATUS} & set(files) and _is_named(Path(folder), path)
    ]
    if len(found) == 1:
        return found[0]
    places = ", ".join(map(str, roots))
    if found:
        raise ReattendError(f"{name} names {len(found)} runs: {', '.join(map(str, found[:5]))}. Give more digits.")
    raise ReattendError(
        f"There is no run '{name}': neither a folder of one, nor the first digits of a fingerprint below {places}. "
        "All runs: python scripts/runs.py status"
    )


def _is_named(folder: Path, name: Path) -> bool:
    parts = name.parts
    digits = folder.name.partition("-")[2]
    return bool(parts) and (folder.parts[-len(parts) :] == parts or (len(parts) == 1 and digits.startswith(parts[0])))
