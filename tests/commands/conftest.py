"""Whole commands on the stand-in, small enough for seconds."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from reattend.config import compose, read
from reattend.runs.sweep import FAILURES
from reattend.train.command import main
from reattend.train.execute import execute, plan
from tests.small_run import SMALL

ROOT = Path(__file__).resolve().parents[2]

Train = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def train_command(tmp_path: Path) -> Train:
    """Runs `train.py` with small settings and the given arguments; runs go below `tmp_path`."""

    def run(*arguments: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "train.py"), *SMALL, f"outputs={tmp_path}", *arguments],
            cwd=cwd,
            env=os.environ | {"OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"} | variables,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Train]:
    """The same in this process, which has spent the seconds that importing torch and Lightning takes."""
    handlers, level, modules = logging.root.handlers[:], logging.root.level, set(sys.modules)

    def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        words = [*SMALL, f"outputs={tmp_path}", *arguments]
        capfd.readouterr()
        with monkeypatch.context() as patched:
            patched.chdir(cwd)
            patched.setattr(sys, "argv", ["train.py", *words])
            patched.setattr(sys, "path", sys.path[:])
            patched.setenv(FAILURES, "")
            try:
                code = main()
            except SystemExit as ended:
                code = ended.code
        return subprocess.CompletedProcess(words, code or 0, *capfd.readouterr())

    yield run
    # What a command leaves behind in its process.
    GlobalHydra.instance().clear()
    HydraConfig.instance().cfg = None
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    for name in set(sys.modules) - modules:
        if name.startswith("my_"):
            del sys.modules[name]


@pytest.fixture(scope="session")
def one_finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for runs of a finished `train()`, which left one of them."""
    outputs = tmp_path_factory.mktemp("finished")
    execute(plan(read(compose([*SMALL, f"outputs={outputs}"]))))
    return outputs


@pytest.fixture
def finished_run(one_finished: Path, tmp_path: Path) -> Path:
    """The folder of a finished run of `train()`."""
    shutil.copytree(one_finished, tmp_path, dirs_exist_ok=True)
    (folder,) = run_folders(tmp_path)
    return folder


def run_folders(outputs: Path) -> list[Path]:
    """Folders of all runs below `outputs`."""
    return sorted(path.parent for path in outputs.glob("runs/**/status.json"))
