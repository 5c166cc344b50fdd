"""One launch: a saved list of runs, the workers on it and the view of them."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from reattend.config.schema import LauncherConfig
from reattend.runs.clean import WORKLIST
from reattend.tables.launchers.in_process import work_here
from reattend.tables.launchers.processes import work_in_processes
from reattend.tables.progress import Progress, shown
from reattend.tables.worklist import write_worklist


def launch(root: Path, name: str, launcher: LauncherConfig, progress: Progress) -> None:
    """Starts the workers on the runs of `progress` and shows it until they end.

    Args:
        root: the launch's list and what its workers say go into a folder below it, which stays if something goes wrong.
        name: of that folder; time and process are added.
        launcher: how to start them.
        progress: runs and retries.

    Raises:
        KeyboardInterrupt: told to stop; runs under way have checkpoints.
        ReattendError: no run can go on: the disk is full, there is no SLURM here, ...
    """
    folder = root / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
    worklist = folder / WORKLIST
    write_worklist(worklist, progress.works)
    with shown(progress):
        _work(worklist, launcher, progress.retries)
    shutil.rmtree(folder)


def _work(worklist: Path, launcher: LauncherConfig, retries: int) -> None:
    if launcher.kind == "local":
        work_here(worklist, retries)
    elif launcher.kind == "processes":
        work_in_processes(worklist, launcher, retries)
    else:
        # Imported here: submitit is for clusters only.
        from reattend.tables.launchers.slurm import work_in_jobs

        work_in_jobs(worklist, launcher, retries)
