"""All runs in this process, one after another."""

from __future__ import annotations

from pathlib import Path

from reattend.tables.worker import stopping_at_a_step, work_through
from reattend.tables.worklist import read_worklist


def work_here(worklist: Path, retries: int) -> None:
    """Runs the list; Ctrl-C stops it at the next step with a checkpoint.

    Raises:
        KeyboardInterrupt: it was told to stop.
        DiskFull: nothing more can be written.
    """
    with stopping_at_a_step():
        work_through(read_worklist(worklist), retries)
