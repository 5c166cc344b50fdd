"""Whether another process is still there."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from functools import cache
from pathlib import Path

_PR_SET_PDEATHSIG = 1


@cache
def place() -> str:
    """Names the space in which a process id means something: one boot of one machine, one container.

    Host names alone do not do: containers and clones of a machine share them.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def process_start(pid: int) -> str | None:
    """When process `pid` began, in clock ticks since boot; None where the system does not say."""
    status = _stat(pid)
    return status[1] if status else None


def is_running(pid: int, start: str | None) -> bool | None:
    """Whether process `pid` of this `place`, which began at `start`, still runs; None if that cannot be told.

    A process id that was given to another process, or a killed process that nobody has waited for, does not run.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to someone else, but it is there
    status = _stat(pid)
    if status is None or start is None:
        return None
    return status[0] not in "ZX" and status[1] == start


def end_with_parent(number: int) -> None:
    """Lets Linux send this process a signal when the one that started it dies; elsewhere it does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _stat(pid: int) -> tuple[str, str] | None:
    """State and start time from /proc; fields 3 and 22, counted behind the command, which may hold spaces."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], fields[19]
