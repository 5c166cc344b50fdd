"""An array of SLURM jobs through submitit; each job is a node whose workers go through the whole list."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import submitit
from submitit.core.job_environment import JobEnvironment

from reattend.config.schema import LauncherConfig
from reattend.errors import ReattendError
from reattend.tables.launchers.processes import work_in_processes

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "offline"}

_TO_SAVE = 120  # seconds before its time limit at which a job is told to save and queue again
_REQUEUES = 1000  # as often as it takes
_LOOK = 1.0
_TIME_OVER = (signal.SIGUSR1, signal.SIGUSR2)


class _Stopped(BaseException):
    """SLURM has sent a signal."""


class Job(submitit.helpers.Checkpointable):
    """What a SLURM job does: `work_in_processes` on its node, until the list is through or its time is over.

    On SIGUSR1 or SIGUSR2, which SLURM sends before the time limit, the workers save checkpoints and the job queues
    again. On SIGTERM they save, and whether the job comes back is left to SLURM: it queues a preempted job again by
    itself, and a cancelled one must end.
    """

    def __init__(self, worklist: Path, launcher: LauncherConfig, retries: int) -> None:
        self.worklist = worklist
        self.launcher = launcher
        self.retries = retries

    def __call__(self) -> None:
        """Runs inside the job."""
        queue_again = signal.getsignal(getattr(signal, f"SIG{JobEnvironment.USR_SIG}"))
        received: list[int] = []

        def stop(number: int, frame: FrameType | None) -> None:
            for each in (*_TIME_OVER, signal.SIGTERM):
                signal.signal(each, signal.SIG_IGN)
            received.append(number)
            raise _Stopped

        for each in (*_TIME_OVER, signal.SIGTERM):
            signal.signal(each, stop)
        # Lightning would take the job's variables for its own and queue the job again by itself.
        variables = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")} | OFFLINE
        try:
            work_in_processes(self.worklist, self.launcher, self.retries, wait=False, variables=variables)
        except _Stopped:
            if received[0] in _TIME_OVER and callable(queue_again):
                queue_again(received[0], None)


def work_in_jobs(worklist: Path, launcher: LauncherConfig, retries: int) -> None:
    """Submits the jobs and waits until all have ended; Ctrl-C ends the waiting, not the jobs.

    Raises:
        ReattendError: there is no SLURM here, or it refuses the jobs.
    """
    jobs = _submit(worklist, launcher, retries)
    numbers = " ".join(dict.fromkeys(str(job.job_id).partition("_")[0] for job in jobs))
    cancel = f"kill {numbers}" if launcher.kind == "submitit_local" else f"scancel {numbers}"
    print(
        f"{len(jobs)} job(s): {numbers}. Ctrl-C ends the waiting, not the jobs; they are ended by: {cancel}", flush=True
    )
    while not all(job.done() for job in jobs):
        time.sleep(_LOOK)
    for job in jobs:
        if (error := job.exception()) is not None:
            raise ReattendError(f"Job {job.job_id} ended with: {str(error).strip().splitlines()[-1]}")


def _submit(worklist: Path, launcher: LauncherConfig, retries: int) -> list[Any]:
    folder = worklist.absolute().parent / "jobs"
    cluster = "local" if launcher.kind == "submitit_local" else "slurm"
    job = Job(worklist.absolute(), launcher, retries)
    try:
        executor = submitit.AutoExecutor(
            folder=folder, cluster=cluster, local_max_num_timeout=_REQUEUES, slurm_max_num_timeout=_REQUEUES
        )
        executor.update_parameters(**_parameters(launcher))
        with executor.batch():
            return [executor.submit(job) for _ in range(launcher.jobs)]
    except RuntimeError as error:
        raise ReattendError(
            f"launcher={launcher.name}: {error} Start the command where sbatch is, or choose launcher=processes."
        ) from error
    except submitit.core.utils.FailedJobError as error:
        raise ReattendError(f"launcher={launcher.name}: SLURM refuses the jobs: {error}") from error


def _parameters(launcher: LauncherConfig) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "name": "reattend",
        "timeout_min": launcher.minutes,
        "slurm_signal_delay_s": _TO_SAVE,
        "slurm_additional_parameters": {"requeue": True, **launcher.sbatch},
    }
    optional = {
        "slurm_partition": launcher.partition,
        "gpus_per_node": launcher.gpus,
        "cpus_per_task": launcher.cpus,
    }
    return parameters | {name: value for name, value in optional.items() if value is not None}
