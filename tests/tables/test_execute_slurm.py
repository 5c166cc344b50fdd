"""SLURM jobs, through submitit's executor on this machine and a stand-in for SLURM's commands."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from reattend.config import compose, read
from reattend.errors import ReattendError
from reattend.tables.launchers.slurm import _submit, work_in_jobs
from reattend.tables.worklist import Work, failures, write_worklist
from tests.tables.launch import Launches, ended, is_gone, kill, wait_for, works


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[Work]:
    return works(Path("out"), ["softmax", "bn"], 2)


@pytest.fixture
def launches(tmp_path: Path, four: list[Work], monkeypatch: pytest.MonkeyPatch) -> Launches:
    monkeypatch.chdir(tmp_path)
    return Launches(tmp_path, four)


def test_two_jobs_share_a_list(launches: Launches) -> None:
    done = launches.run("submitit_local", jobs=2, workers=1, FAKE_STEPS=10)
    assert done.returncode == 0, done.stderr
    assert len(launches.results) == 4
    assert set(launches.times("start").values()) == {1}


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGUSR2, marks=pytest.mark.slow)])
def test_a_job_whose_time_is_over_saves_and_queues_again(launches: Launches, number: int) -> None:
    process = launches.start("submitit_local", workers=1, FAKE_STEPS=100)
    wait_for(lambda: launches.noted("start"), process)
    worker, _ = launches.noted("start")[0]
    os.kill(_parent(worker), number)
    wait_for(lambda: len(launches.noted("start")) > 1, process)
    assert len(launches.noted("saved")) == 1
    assert ended(process).returncode == 0
    assert len(launches.results) == 4
    assert not [work for work in launches.works if failures(work.folder)]


def test_a_cancelled_job_saves_and_ends(launches: Launches) -> None:
    process = launches.start("submitit_local", workers=1, FAKE_STEPS=400)
    wait_for(lambda: launches.noted("start"), process)
    worker, _ = launches.noted("start")[0]
    os.kill(_parent(worker), signal.SIGTERM)
    assert ended(process).returncode == 0
    assert len(launches.noted("saved")) == len(launches.noted("start")) == 1
    assert not launches.results


@pytest.mark.slow
def test_workers_end_with_a_killed_job(launches: Launches) -> None:
    process = launches.start("submitit_local", workers=1, FAKE_STEPS=400)
    wait_for(lambda: launches.noted("start"), process)
    worker, _ = launches.noted("start")[0]
    kill(_parent(worker))
    ended(process)
    wait_for(lambda: is_gone(worker))
    assert len(launches.noted("saved")) == 1


def test_sbatch_is_told_what_the_preset_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four: list[Work]) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/submitted\necho Submitted batch job 17\n')
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    for name in ("sbatch", "srun"):
        (tmp_path / name).chmod(0o755)
    overrides = ["launcher=slurm_8xv100", "launcher.jobs=3", "launcher.minutes=90", "launcher.partition=gpu"]
    launcher = read(compose([*overrides, "launcher.sbatch={account: lab}"])).launcher
    write_worklist(tmp_path / "list.json", four)
    assert [job.job_id for job in _submit(tmp_path / "list.json", launcher, 2)] == ["17_0", "17_1", "17_2"]
    script = (tmp_path / "submitted").read_text()
    for flag in (
        "array=0-2%3",
        "time=90",
        "partition=gpu",
        "gpus-per-node=8",
        "cpus-per-task=40",
        "account=lab",
        "requeue",
        "signal=USR2@120",
    ):
        assert f"#SBATCH --{flag}\n" in script


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReattendError, match=r"launcher=slurm: .*srun.*choose launcher=processes"):
        work_in_jobs(tmp_path / "list.json", read(compose(["launcher=slurm"])).launcher, 2)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
