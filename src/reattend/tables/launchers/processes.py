"""Worker processes on this machine, one GPU each where there are GPUs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reattend.config.schema import LauncherConfig
from reattend.errors import ReattendError
from reattend.tables.worker import DISK_FULL, INTERRUPTED, DiskFull
from reattend.tables.worklist import Work, WorkerDied, last_holder, read_worklist, record_failure

_LOOK = 0.2  # seconds between two looks at the workers
_TO_SAVE = 60.0  # seconds that a worker has for its checkpoint before it is killed
_IDLE_DEATHS = 3  # workers that end before they took a run, after which it is no accident


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    number: int


def work_in_processes(
    worklist: Path,
    launcher: LauncherConfig,
    retries: int,
    *,
    wait: bool = True,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Runs the list in worker processes until all of them are through; one that dies is replaced.

    Args:
        worklist: saved by `write_worklist`; the workers' own messages go into files beside it.
        launcher: how many workers.
        retries: as of `work_through`.
        wait: as of `work_through`.
        variables: environment of the workers; this process's own if it is None.

    Raises:
        DiskFull: nothing more can be written.
        ReattendError: workers end before they do anything; the message shows what they said.
    """
    works = read_worklist(worklist)
    environments = worker_environments(launcher, works, dict(os.environ if variables is None else variables))
    workers: list[_Worker] = []
    idle_deaths = 0
    try:
        workers += [_start(worklist, number, retries, wait, env) for number, env in enumerate(environments)]
        while workers:
            time.sleep(_LOOK)
            for worker in [w for w in workers if w.process.poll() is not None]:
                workers.remove(worker)
                code = worker.process.returncode
                if code == DISK_FULL:
                    raise DiskFull(_last_words(worklist, worker.number))
                if code not in (0, INTERRUPTED):  # who was told to stop is not replaced
                    idle_deaths += not _blame(works, worker)
                    if idle_deaths == _IDLE_DEATHS:
                        raise ReattendError(
                            f"Workers end before they take a run (exit code {code}): "
                            f"{_last_words(worklist, worker.number)}"
                        )
                    env = environments[worker.number]
                    workers.append(_start(worklist, worker.number, retries, wait, env))
    finally:
        _stop([worker.process for worker in workers])


def worker_environments(
    launcher: LauncherConfig, works: Sequence[Work], variables: Mapping[str, str]
) -> list[dict[str, str]]:
    """The environment of each worker: its GPUs, or its share of the cores.

    A run on several devices gets several GPUs. With more workers than GPUs they share them.
    """
    trainers = [work.config.trainer for work in works]
    devices = max(trainer.devices for trainer in trainers)
    gpus = [] if all(trainer.accelerator == "cpu" for trainer in trainers) else visible_gpus(variables)
    if gpus:
        count = min(launcher.workers or max(len(gpus) // devices, 1), len(works))
        shares = [[gpus[(worker * devices + i) % len(gpus)] for i in range(devices)] for worker in range(count)]
        return [{**variables, "CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(share))} for share in shares]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = max(trainer.threads or int(variables.get("OMP_NUM_THREADS", cores)) for trainer in trainers)
    count = min(launcher.workers or max(cores // (wanted * devices), 1), len(works))
    # Without it every worker would start a thread on every core.
    threads = variables.get("OMP_NUM_THREADS", str(max(cores // count, 1)))
    return [{**variables, "OMP_NUM_THREADS": threads} for _ in range(count)]


def visible_gpus(variables: Mapping[str, str]) -> list[str]:
    """Names of the GPUs as CUDA_VISIBLE_DEVICES takes them, found without loading torch."""
    if "CUDA_VISIBLE_DEVICES" in variables:
        return [name.strip() for name in variables["CUDA_VISIBLE_DEVICES"].split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    listed = subprocess.run(command, capture_output=True, text=True)
    return listed.stdout.split() if listed.returncode == 0 else []


def _start(worklist: Path, number: int, retries: int, wait: bool, environment: Mapping[str, str]) -> _Worker:
    command = [sys.executable, "-m", "reattend.tables.worker", str(worklist), f"--first={number}"]
    command += [f"--retries={retries}", f"--parent={os.getpid()}", *([] if wait else ["--no-wait"])]
    with open(_log(worklist, number), "ab") as log:
        # A session of its own: Ctrl-C reaches this process only, which stops the workers with a checkpoint.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return _Worker(process, number)


def _blame(works: Sequence[Work], worker: _Worker) -> bool:
    """Records as failed the run that a dead worker had; whether it had one."""
    code = worker.process.returncode
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    error = WorkerDied(f"its process ended with {how}; out of memory, or killed")
    for work in works:
        if last_holder(work.folder) == worker.process.pid:
            record_failure(work.folder, error)
            return True
    return False


def _last_words(worklist: Path, number: int) -> str:
    return " ".join(_log(worklist, number).read_text(errors="replace").strip().splitlines()[-3:])


def _log(worklist: Path, number: int) -> Path:
    return worklist.with_name(f"worker-{number}.log")


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Lets each save a checkpoint and end; those that do not are killed, all at once on a second Ctrl-C."""
    for process in processes:
        process.terminate()
    end = time.monotonic() + _TO_SAVE
    try:
        for process in processes:
            process.wait(timeout=max(end - time.monotonic(), 0))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
