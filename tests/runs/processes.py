"""Real processes that claim, write and get killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import reattend

# Claims a folder until a line or the end comes.
HOLD = """
import sys, time
from pathlib import Path
from reattend.runs.lease import Lease
with Lease.claim(Path(sys.argv[1])):
    print("claimed")
    sys.stdin.readline()
"""

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(reattend.__file__)))


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Python on `code`, whose output can be read line by line."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": SOURCE},
    )


@contextmanager
def started(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`start`, once it has printed its first line; killed at the end."""
    process = start(code, *arguments)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9, and the end of the process."""
    process.send_signal(signal.SIGKILL)
    process.communicate()
