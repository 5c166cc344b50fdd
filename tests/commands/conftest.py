"""Whole commands on the stand-in, small enough for seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.small_run import SMALL

ROOT = Path(__file__).resolve().parents[2]

Train = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
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


def run_folders(outputs: Path) -> list[Path]:
    """Folders of all runs below `outputs`."""
    return sorted(path.parent for path in outputs.glob("runs/**/status.json"))
