"""What of the run folders can go."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reattend.errors import ReattendError
from reattend.runs.catalogue import SET_ASIDE, RunEntry, is_held
from reattend.runs.files import read_json

CHECKPOINT = "last.ckpt"
WORKLIST = "worklist.json"  # in a launch's folder: its runs
DAY = 86400.0

KINDS = {
    "checkpoints": "checkpoints of finished runs: they are needed to go on, and a finished run does not",
    "set_aside": "files that rerun=true moved aside, and damaged results and statuses",
    "failed": "folders of failed runs that nobody touched for a day; with them goes the reason",
    "interrupted": "folders of interrupted runs that nobody touched for a week; they could still be taken up",
    "launches": "lists and logs of launches that were stopped or failed, none of whose runs is under way, after a week",
}
_LEAST_AGE = {"failed": DAY, "interrupted": 7 * DAY, "launches": 7 * DAY}


@dataclass(frozen=True)
class Removable:
    """Files or folders of one kind that can go, with their bytes."""

    kind: str
    paths: tuple[Path, ...]
    bytes: int


def removable(entries: Sequence[RunEntry], launches: Path, now: float | None = None) -> list[Removable]:
    """What can go, by kind; results and models of finished runs never do, nor anything of a claimed folder.

    Args:
        entries: of run folders.
        launches: the folder of launches, <outputs>/launches.
        now: seconds since the epoch.
    """
    now = time.time() if now is None else now
    found = []
    for kind in KINDS:
        paths = tuple(_launches(launches, now) if kind == "launches" else _paths(kind, entries, now))
        if paths:
            found.append(Removable(kind, paths, sum(map(_bytes, paths))))
    return found


def remove(what: Removable) -> int:
    """Removes the paths, but for those of a folder that was claimed meanwhile; returns how many are gone."""
    gone = 0
    for path in what.paths:
        folder = path if what.kind in _LEAST_AGE else path.parent
        if _is_under_way(folder) if what.kind == "launches" else is_held(folder):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        gone += 1
    return gone


def _paths(kind: str, entries: Sequence[RunEntry], now: float) -> Iterator[Path]:
    for entry in entries:
        if entry.state == "running":
            continue
        if kind == "checkpoints" and entry.state == "done" and (entry.folder / CHECKPOINT).exists():
            yield entry.folder / CHECKPOINT
        elif kind == "set_aside":
            yield from sorted([*entry.folder.glob(f"{SET_ASIDE}*"), *entry.folder.glob("*.damaged-*")])
        elif kind == entry.state and now - entry.changed > _LEAST_AGE.get(kind, 0.0) and not _was_finished(entry):
            yield entry.folder


def _was_finished(entry: RunEntry) -> bool:
    """Whether its models are those of a finished run, whose result alone is lost."""
    return entry.state == "interrupted" and bool(entry.reason)


def _launches(root: Path, now: float) -> Iterator[Path]:
    for folder in sorted(path.parent for path in root.glob(f"*/{WORKLIST}")):
        changed = max(path.stat().st_mtime for path in folder.rglob("*"))
        if now - changed > _LEAST_AGE["launches"] and not _is_under_way(folder):
            yield folder


def _is_under_way(launch: Path) -> bool:
    try:
        return any(is_held(Path(entry["folder"])) for entry in read_json(launch / WORKLIST, ""))
    except ReattendError:
        return False


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
