"""One run from its configuration: skipped if it is finished, here or in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from reattend.config import check_run, to_dict
from reattend.config.schema import RunConfig
from reattend.errors import ReattendError
from reattend.runs.checkpoints import check_checkpoint
from reattend.runs.lease import Lease
from reattend.runs.result import read_result, unfinished
from reattend.runs.status import read_status
from reattend.train.callbacks import CHECKPOINT
from reattend.train.execute import Plan, execute, plan
from reattend.train.summary import summary, trial_summary


def run(config: RunConfig, overrides: Sequence[str], *, trial: bool = False) -> Path:
    """Runs `config` unless it is finished, prints what came out, and returns the run's folder.

    Args:
        config: what to run.
        overrides: of the command line that it comes from, for the next command.
        trial: of a search, which tells its number on validation only.

    Raises:
        ReattendError: something a person can mend; the run's status says what.
    """
    check_run(config)
    planned = plan(config)
    lacking = unfinished(planned.folder)
    if config.rerun and (lacking is None or not _can_go_on(planned)):
        _set_aside(planned.folder)
        lacking = "it is repeated"
    status = read_status(planned.folder)
    if lacking and status is not None and status.state == "done":
        print(f"This run was finished, but {lacking}. It goes on from its last checkpoint.")
    if lacking is None:
        print("This run is finished; rerun=true repeats it.")
    elif config.trainer.devices > 1:
        _execute_in_subprocess(planned)
    else:
        execute(planned)
    result = read_result(planned.folder)
    print(trial_summary(result, planned.folder) if trial else summary(result, config, planned.folder, overrides))
    return planned.folder


def _can_go_on(planned: Plan) -> bool:
    """Whether an interrupted run has nothing that keeps it from being taken up again."""
    checkpoint = planned.folder / CHECKPOINT
    if not checkpoint.exists():
        return True
    try:
        check_checkpoint(checkpoint, planned.fingerprint)
    except ReattendError:
        return False
    return True


def _set_aside(folder: Path) -> None:
    """Moves all files of the run into a dated folder inside, so that starting it anew loses nothing."""
    with Lease.claim(folder):
        before = folder / f"before-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        before.mkdir()
        for path in folder.iterdir():
            if not path.name.startswith(("lease.", "before-")):
                path.rename(before / path.name)


def _execute_in_subprocess(planned: Plan) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        configuration = Path(scratch, "config.json")
        configuration.write_text(json.dumps(to_dict(planned.config)))
        done = subprocess.run([sys.executable, "-m", "reattend.train.worker", str(configuration)])
    if done.returncode:
        status = read_status(planned.folder)
        reason = status.error["message"] if status and status.error else f"its processes ended with {done.returncode}"
        raise ReattendError(f"The run in {planned.folder} failed: {reason}")
