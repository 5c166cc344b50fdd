"""A worker in this process, on real runs, and what the workers of a machine are given."""

from __future__ import annotations

import errno
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from reattend.config.schema import LauncherConfig
from reattend.errors import RunInterruptedError
from reattend.runs.checkpoints import check_checkpoint
from reattend.runs.lease import Lease
from reattend.runs.metrics import MetricsFile
from reattend.runs.result import read_result
from reattend.runs.status import mark, read_status
from reattend.tables.launchers.processes import worker_environments
from reattend.tables.progress import Progress, _view, duration
from reattend.tables.worker import stopping_at_a_step, work_through
from reattend.tables.worklist import failures, read_worklist, record_failure, write_worklist
from reattend.train.callbacks import CHECKPOINT, KeepState
from reattend.train.devices import forget_peaks
from tests.small_run import SMALL
from tests.tables.launch import works


def test_sigterm_saves_at_the_step_and_the_run_goes_on_to_the_same_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*SMALL, "recipe.epochs=2", "recipe.batch_size=16", "trainer.checkpoint_seconds=1000"]
    unbroken, broken = (works(tmp_path / name, ["bn"], 1, *options) for name in ("unbroken", "broken"))
    work_through(unbroken, 0)
    batches: list[int] = []

    def stop_in_the_second_batch(keep: KeepState, trainer: object, task: object, *args: object) -> None:
        batches.append(1)
        if len(batches) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(KeepState, "on_train_batch_start", stop_in_the_second_batch)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stopping_at_a_step(), pytest.raises(KeyboardInterrupt):
        work_through(broken, 0)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    result = read_result(unbroken[0].folder)
    folder = broken[0].folder
    assert check_checkpoint(folder / CHECKPOINT, result.fingerprint)["global_step"] == 2
    assert not failures(folder)
    work_through(broken, 0)
    assert read_result(folder).metrics == result.metrics
    status = read_status(folder)
    assert status is not None
    assert (status.state, status.attempts) == ("done", 2)
    assert "epoch 2/2" in (folder / "output.log").read_text()


def test_a_failure_counts_once_from_the_moment_that_its_run_is_given_back(tmp_path: Path) -> None:
    (work,) = works(tmp_path, ["softmax"], 1, *SMALL)
    for count in (1, 2):
        with Lease.claim(work.folder):
            mark(work.folder, "running")
            assert len(failures(work.folder)) == count - 1
            mark(work.folder, "failed", ValueError(f"no {count}"))
        assert [failure.message for failure in failures(work.folder)][-1] == f"no {count}"
        assert len(failures(work.folder)) == count
        record_failure(work.folder, ValueError(f"no {count}"))
        assert len(failures(work.folder)) == count
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for error in (RunInterruptedError("told to stop"), full):
        with Lease.claim(work.folder):
            mark(work.folder, "failed", error)
        assert len(failures(work.folder)) == 2


def test_a_failure_keeps_its_traceback_and_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work,) = works(tmp_path, ["softmax"], 1, *SMALL)
    broken = replace(work.config, task=replace(work.config.task, target="reattend.tasks.NotThere"))
    work_through([replace(work, config=broken)], 1)
    assert len(failures(work.folder)) == 2
    assert "NotThere" in failures(work.folder)[0].message
    assert "NotThere" in (work.folder / "output.log").read_text()
    status = read_status(work.folder)
    assert status is not None
    assert status.state == "failed"


def test_a_list_comes_back_as_it_was(tmp_path: Path) -> None:
    listed = works(tmp_path, ["bn_sh", "primal"], 2)
    write_worklist(tmp_path / "list.json", listed)
    assert read_worklist(tmp_path / "list.json") == listed


def test_the_peak_of_a_run_is_its_own() -> None:
    forget_peaks()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    large = bytearray(os.urandom(1)) * 2**28
    with_it = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del large
    forget_peaks()
    assert with_it > before + 200 * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < with_it - 200 * 1024


def test_workers_get_a_gpu_each(tmp_path: Path) -> None:
    listed = works(tmp_path, ["bn"], 4)
    processes = LauncherConfig("processes", "processes")
    variables = {"CUDA_VISIBLE_DEVICES": "2,5,7"}
    given = [e["CUDA_VISIBLE_DEVICES"] for e in worker_environments(processes, listed, variables)]
    assert given == ["2", "5", "7"]
    given = [e["CUDA_VISIBLE_DEVICES"] for e in worker_environments(replace(processes, workers=4), listed, variables)]
    assert given == ["2", "5", "7", "2"]
    on_two = works(tmp_path, ["bn"], 4, "trainer.devices=2", "trainer.strategy=ddp")
    variables = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    given = [e["CUDA_VISIBLE_DEVICES"] for e in worker_environments(processes, on_two, variables)]
    assert given == ["0,1", "2,3"]


def test_workers_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    listed = works(tmp_path, ["bn"], 5)
    processes, no_gpu = LauncherConfig("processes", "processes"), {"CUDA_VISIBLE_DEVICES": ""}
    assert len(worker_environments(processes, listed, no_gpu)) == 1
    assert len(worker_environments(processes, listed, no_gpu | {"OMP_NUM_THREADS": "2"})) == 4
    assert len(worker_environments(processes, works(tmp_path, ["bn"], 5, "trainer.threads=1"), no_gpu)) == 5
    four = worker_environments(replace(processes, workers=4), listed, no_gpu)
    assert [environment["OMP_NUM_THREADS"] for environment in four] == ["2"] * 4


def test_the_view_has_what_runs_what_failed_and_the_time_left(tmp_path: Path) -> None:
    first, second, third = works(tmp_path, ["softmax"], 3, "recipe.epochs=10")
    progress = Progress([first, second, third], 0, finished_before=2, blocked=1)
    assert progress.look() == []
    assert progress.summary == "2 of 5 done, 0 running, 1 blocked"
    record_failure(third.folder, ValueError("no"))
    with Lease.claim(second.folder):
        mark(second.folder, "running")
        MetricsFile(second.folder / "metrics.csv").append(4, 20, {"test/accuracy": 0.75})
        assert progress.look() == [
            "softmax Vowels seed 1 running: test/accuracy 0.7500  (2 of 5 done, 1 running, 1 blocked)",
            "softmax Vowels seed 2 failed: ValueError: no  (2 of 5 done, 1 running, 1 failed, 1 blocked)",
        ]
        console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        console.print(_view(progress))
        shown = console.export_text()
        assert "softmax Vowels seed 1" in shown
        assert "epoch 4/10  test/accuracy 0.7500" in shown
    summary = "2 of 5 done, 0 running, 1 failed, 1 blocked"
    assert progress.look() == [f"softmax Vowels seed 1 interrupted: after epoch 4 of 10; it can go on  ({summary})"]
    mark(second.folder, "failed", RunInterruptedError("stopped"))
    assert progress.look() == []
    assert Progress([second], 0, 0, 0).look() == []


@pytest.mark.parametrize(("seconds", "said"), [(40, "40 s"), (600, "10 min"), (12000, "3 h 20 min")])
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
