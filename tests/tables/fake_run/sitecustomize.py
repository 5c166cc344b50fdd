"""Puts a run without training in the place of the real one, in processes that have this folder on PYTHONPATH.

Everything around it is real: folders, leases, status, results. Variables:

    FAKE_LOG     where starts and ends are noted
    FAKE_LIST    the list of runs
    FAKE_STEPS   of 20 ms
    FAKE_FAILS   names of attentions that fail
    FAKE_DIES    one whose process kills itself
    FAKE_FULL    one that fills the disk
    FAKE_CUT     one, and where its first attempt is killed: "bn half" in the middle of writing its result, "bn renamed"
                 before it says that it is done
    FAKE_BROKEN  set: workers do not start
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def note(text: str) -> None:
    handle = os.open(os.environ["FAKE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{os.getpid()} {text}\n".encode())
    os.close(handle)


def cut_off(moment: str) -> None:
    from reattend.runs import files

    def sync_or_die(path: Path) -> None:
        if path.is_dir() and moment == "half":
            return
        if path.is_file():
            if moment == "renamed":
                return
            os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    files._sync = sync_or_die


def run(config: Any, overrides: Sequence[str]) -> Path:
    from reattend.config import to_dict
    from reattend.data.checksum import data_checksum
    from reattend.errors import RunInterruptedError
    from reattend.runs.lease import Lease
    from reattend.runs.metrics import MetricsFile
    from reattend.runs.result import FILE, Result, Selected, write_result
    from reattend.runs.status import mark
    from reattend.tables.worklist import read_worklist

    # Not by the fingerprint: it asks the classes for their revisions, which loads torch.
    folder = next(work.folder for work in read_worklist(Path(os.environ["FAKE_LIST"])) if work.config == config)
    plain = to_dict(config)
    with Lease.claim(folder):
        if (folder / FILE).exists():
            return folder
        status = mark(folder, "running")
        note(f"start {folder.name}")
        try:
            for step in range(int(os.environ.get("FAKE_STEPS", "1"))):
                MetricsFile(folder / "metrics.csv").append(step + 1, step, {"test/accuracy": 0.5})
                time.sleep(0.02)
            if config.attention.name in os.environ.get("FAKE_FAILS", "").split(","):
                raise RuntimeError("it does not work")
            if config.attention.name == os.environ.get("FAKE_FULL"):
                raise OSError(errno.ENOSPC, "No space left on device")
            if config.attention.name == os.environ.get("FAKE_DIES"):
                os.kill(os.getpid(), signal.SIGKILL)
        except KeyboardInterrupt:
            mark(folder, "failed", RunInterruptedError("stopped"))
            note(f"saved {folder.name}")
            raise RunInterruptedError("stopped") from None
        except RuntimeError as error:
            mark(folder, "failed", error)
            raise
        selected = Selected(1, 1, {"test/accuracy": 0.5})
        result = Result(
            task=config.task.name, attention=config.attention.name, backbone=config.backbone.name, seed=config.seed,
            fingerprint=folder.name.partition("-")[2], scale=config.scale.name,
            protocol=config.protocol.name, fidelity=plain["fidelity"], data=config.data.name,
            metrics={"last": selected, "best_on_test": selected}, parameters=1, flops=1,
            training_flops=1, seconds=1.0, peak_memory=1, device="cpu", versions={}, git_commit=None,
            data_checksums={"train and test": data_checksum(config)}, config=plain,
        )  # fmt: skip
        if status.attempts == 1 and os.environ.get("FAKE_CUT", "").split(" ")[0] == config.attention.name:
            cut_off(os.environ["FAKE_CUT"].split(" ")[1])
        write_result(folder, result)
        note(f"end {folder.name}")
        mark(folder, "done")
    print("a line of output")
    return folder


if "FAKE_BROKEN" in os.environ and "-m" in sys.orig_argv:
    sys.exit("no such library")
module = types.ModuleType("reattend.train.run")
module.run = run  # type: ignore[attr-defined]
sys.modules["reattend.train.run"] = module
