"""Claiming a run's folder, so that no two processes write into it at once, on cluster file systems too.

A lease is a file `lease.<n>` with its holder and a heartbeat, written whole under another name and then linked, which
only one contender can. The highest n counts. A released or stale lease n is taken over by linking n + 1; removing or
renaming n instead would let a contender that judged n a moment ago hit the lease that replaced it. The heartbeat is
written in place through the open file, so a holder that wakes up too late cannot overwrite its successor's.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from reattend.errors import ReattendError
from reattend.runs.files import remove_leftovers
from reattend.runs.process import is_running, place, process_start

INTERVAL = 5.0  # seconds between heartbeats
LIMIT = 60.0  # seconds without a heartbeat after which a process on another host is taken for dead

_NAME = re.compile(r"lease\.(\d+)")
_RECORD_BYTES = 1024  # fixed, so that a heartbeat overwrites the whole record in one write


class RunClaimed(ReattendError):  # noqa: N818
    """Another live process has the run's folder."""


class LeaseLost(ReattendError):  # noqa: N818
    """The folder was taken over by another process: nothing more may be written into it."""


@dataclass(frozen=True)
class Holder:
    """Who has, or had, a folder. `process_start` tells a process from a later one with the same id."""

    host: str
    place: str
    pid: int
    process_start: str | None
    token: str
    since: str
    beat: int = 0
    released: bool = False


def holder(folder: Path) -> Holder | None:
    """Who claimed `folder` last; None if nobody did, or the claim is just being written."""
    found = _newest(folder)
    try:
        return _read(_path(folder, found))[0] if found else None
    except FileNotFoundError:
        return None


class Lease:
    """A claimed folder. The heart beats in a thread until `release`, or the end of a `with` block."""

    def __init__(self, path: Path, handle: int, owner: Holder, interval: float, limit: float) -> None:
        self._path = path
        self._handle = handle
        self._owner = owner
        self._interval = interval
        self._limit = limit
        self._lost = False
        self._vouched = time.monotonic()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_stopped, name="lease", daemon=True)

    @classmethod
    def claim(cls, folder: Path, *, interval: float = INTERVAL, limit: float = LIMIT) -> Lease:
        """Claims `folder`, which is made if it is not there.

        A killed process of this machine loses its lease at once, one of another machine after `limit` seconds
        without a heartbeat.

        Raises:
            RunClaimed: another live process has it.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ReattendError(f"{folder} cannot be made: {error.strerror}") from error
        while True:
            newest = _newest(folder)
            if newest:
                _refuse_if_held(folder, newest, interval, limit)
            lease = cls._create(folder, newest + 1, interval, limit)
            if lease is None:
                continue
            if _newest(folder) > newest + 1:
                lease._withdraw()
                continue
            for older in _generations(folder):
                if older <= newest:
                    _path(folder, older).unlink(missing_ok=True)
            remove_leftovers(folder)
            lease._thread.start()
            return lease

    @classmethod
    def _create(cls, folder: Path, generation: int, interval: float, limit: float) -> Lease | None:
        path = _path(folder, generation)
        owner = Holder(
            host=socket.gethostname(),
            place=place(),
            pid=os.getpid(),
            process_start=process_start(os.getpid()),
            token=secrets.token_hex(8),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        temporary = folder / f".{path.name}.{owner.token}.tmp"
        try:
            with open(temporary, "xb") as file:
                file.write(_record(owner))
                file.flush()
                os.fsync(file.fileno())
            handle = _link(temporary, path)
        except OSError as error:
            raise ReattendError(f"{folder} cannot be claimed: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)
        return None if handle is None else cls(path, handle, owner, interval, limit)

    @property
    def lost(self) -> bool:
        """Whether another process has taken the folder over."""
        return self._lost

    def check(self) -> None:
        """To be called before anything is written into the folder.

        Raises:
            LeaseLost: another process has taken the folder over.
        """
        if time.monotonic() - self._vouched > self._interval:  # the heart stood still: the process was stopped
            self._beat()
        if self._lost:
            raise LeaseLost(
                f"{self._path.parent} was taken over by another process while this one gave no sign of life "
                f"for more than {self._limit:.0f} s. This process stops; the other one goes on with the run."
            )

    def release(self) -> None:
        """Gives the folder back. In a forked copy of the process it does nothing."""
        if self._stop.is_set() or self._owner.pid != os.getpid():
            return
        self._stop.set()
        self._thread.join()
        try:
            if not self._lost:
                self._owner = replace(self._owner, released=True)
                self._write()
        finally:
            os.close(self._handle)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _withdraw(self) -> None:
        os.close(self._handle)
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        os.pwrite(self._handle, _record(self._owner), 0)
        os.fsync(self._handle)

    def _beat_until_stopped(self) -> None:
        while not self._stop.wait(self._interval) and not self._lost:
            self._beat()

    def _beat(self) -> None:
        with self._lock:
            if self._lost:
                return
            try:
                if not self._is_ours():
                    self._lost = True
                    return
                self._owner = replace(self._owner, beat=self._owner.beat + 1)
                self._write()
                self._vouched = time.monotonic()
            except OSError:
                # The file system may come back; but after the limit others rightly take this process for dead.
                self._lost = time.monotonic() - self._vouched > self._limit

    def _is_ours(self) -> bool:
        try:
            found, _ = _read(self._path)
        except FileNotFoundError:
            return False
        if found is not None and found.token != self._owner.token:
            return False
        return self._path == _path(self._path.parent, _newest(self._path.parent))


def _record(owner: Holder) -> bytes:
    return (json.dumps(asdict(owner)).ljust(_RECORD_BYTES - 1) + "\n").encode()


def _link(temporary: Path, path: Path) -> int | None:
    """An open handle of `path`, now a name of `temporary`; None if another contender was first."""
    try:
        os.link(temporary, path)
    except (FileExistsError, FileNotFoundError):  # whoever won removes the temporary files of the others
        return None
    except OSError as error:
        raise ReattendError(
            f"{path.parent} cannot be claimed: its file system makes no hard links ({error.strerror}). "
            "Choose another with outputs=PATH, and start the same command again."
        ) from error
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:  # a later lease has replaced it already
        return None


def _path(folder: Path, generation: int) -> Path:
    return folder / f"lease.{generation}"


def _generations(folder: Path) -> list[int]:
    return [int(match[1]) for name in os.listdir(folder) if (match := _NAME.fullmatch(name))]


def _newest(folder: Path) -> int:
    return max(_generations(folder), default=0)


def _read(path: Path) -> tuple[Holder | None, float]:
    """The record, None if it is not whole, and the time of the last heartbeat by the file system's clock."""
    with open(path, "rb") as file:
        written = os.fstat(file.fileno()).st_mtime
        try:
            return Holder(**json.loads(file.read())), written
        except (ValueError, TypeError):
            return None, written


def _refuse_if_held(folder: Path, generation: int, interval: float, limit: float) -> None:
    path = _path(folder, generation)
    try:
        owner, written = _read(path)
        if owner is not None and owner.released:
            return
        if owner is not None and owner.place == place():
            running = is_running(owner.pid, owner.process_start)
            if running is not None:
                if running:
                    raise _claimed(folder, owner, limit)
                return
        age = _file_system_time(folder) - written
        if abs(age) <= limit or _beats(path, owner, written, 3 * interval if age > limit else limit):
            raise _claimed(folder, owner, limit)
    except FileNotFoundError:
        return  # replaced by a newer lease, which the caller finds


def _beats(path: Path, owner: Holder | None, written: float, patience: float) -> bool:
    """Watches a lease that seems stale: its age alone may come from a clock that was set."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        time.sleep(min(0.5, patience / 10))
        if _read(path) != (owner, written):
            return True
    return False


def _file_system_time(folder: Path) -> float:
    """Now, by the clock that stamps the heartbeats: another host's clock may differ from ours."""
    probe = folder / f".clock.{secrets.token_hex(4)}.tmp"
    with open(probe, "xb") as file:
        probe.unlink(missing_ok=True)
        return os.fstat(file.fileno()).st_mtime


def _claimed(folder: Path, owner: Holder | None, limit: float) -> RunClaimed:
    if owner is None:
        return RunClaimed(f"{folder} is being claimed by another process at this moment. Try again in {limit:.0f} s.")
    return RunClaimed(
        f"{folder} is claimed by process {owner.pid} on {owner.host} since {owner.since}. Wait until it ends, or stop "
        f"it there (kill {owner.pid}) and start the same command again. A process of another host that gives no "
        f"heartbeat for {limit:.0f} s loses its claim by itself."
    )
