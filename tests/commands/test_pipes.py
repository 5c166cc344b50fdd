"""Commands whose output nobody reads any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [ROOT / "train.py", *sorted((ROOT / "scripts").glob("*.py"))]

MAINS = {
    "print": "print('a'); return 0",
    "much": "print('a' * 100_000, flush=True); return 0",
    "rich": "from rich.console import Console; Console().print('a'); return 0",
    "exit": "print('a'); sys.exit(3)",
    "caught": "try: print('a', flush=True)\n  except OSError: leave_if_unread()",
}


def end(main: str, reader: str) -> tuple[int, bytes]:
    """Exit code and stderr of a command behind which a reader has gone, or of one with a whole reader."""
    code = (
        f"import sys\nfrom reattend.pipes import leave_if_unread, run_command\ndef main():\n  {main}\nrun_command(main)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if reader == "gone":
        process.stdout.close()
    else:
        process.stdout.read()
    told = process.stderr.read()
    return process.wait(), told


@pytest.mark.parametrize("main", MAINS.values(), ids=MAINS)
def test_without_a_reader_a_command_ends_as_sigpipe_would(main: str) -> None:
    assert end(main, "gone") == (141, b"")


def test_other_ends_stay_as_they_are() -> None:
    assert end(MAINS["exit"], "there") == (3, b"")
    code, told = end("raise BrokenPipeError('of a socket')", "there")
    assert code == 1
    assert b"BrokenPipeError: of a socket" in told


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.name)
def test_every_command_ends_so(command: Path) -> None:
    assert "    run_command(" in command.read_text()
