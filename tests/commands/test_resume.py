"""A run that is killed and started again ends with the numbers of an unbroken one, to the last digit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from reattend.config import compose, normalise_overrides, read
from reattend.runs.result import read_result
from reattend.train.execute import execute, plan
from tests.small_run import SMALL

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = [*SMALL, "attention=bn_sh", "beta=learnable", "recipe.epochs=6", "trainer.checkpoint_seconds=0"]


CYCLE = [  # the rate and AdamW's beta cycle over all steps, and an epoch is some steps of an endless row of passes
    *("task=lra/listops", "data=standin", "scale=quick", "scale.max_length=32", "scale.batch_size=8", "scale.epochs=8"),
    *("scale.steps_per_epoch=5", "attention=bn_sh", "trainer=cpu", "trainer.threads=1", "trainer.checkpoint_seconds=0"),
]

IMAGES = [  # mixed and augmented images from processes of their own, cosine, dropped branches, averaged weights
    *("task=imagenet/deit_tiny", "data=standin", "scale=quick", "scale.image_size=32", "scale.epochs=4"),
    *("scale.steps_per_epoch=5", "scale.batch_size=8", "backbone.options.depth=2", "backbone.options.dim=32"),
    *("recipe.ema_decay=0.9", "trainer=cpu", "trainer.threads=1", "trainer.loader_workers=2"),
    "trainer.checkpoint_seconds=0",
]
TEXT = [
    *("task=char_lm/file", "data=standin", "scale=quick", "scale.max_length=32", "scale.batch_size=8"),
    *("scale.epochs=4", "scale.steps_per_epoch=5", "attention=aft_local", "backbone.options.depth=1"),
    *("backbone.options.dim=16", "trainer=cpu", "trainer.threads=1", "trainer.checkpoint_seconds=0"),
]
PIXELS = [  # augmented
    *("task=image_ar/cifar10", "data=standin", "scale=quick", "scale.image_size=4", "scale.batch_size=8"),
    *("scale.epochs=4", "scale.steps_per_epoch=5", "attention=aft_local", "scale.depth=1", "scale.dim=16"),
    *("trainer=cpu", "trainer.threads=1", "trainer.checkpoint_seconds=0"),
]


def command(outputs: Path, options: Sequence[str] = OPTIONS) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *options, f"outputs={outputs}"]


def run_folder(outputs: Path) -> Path:
    (folder,) = outputs.glob("runs/*/*/*/*/s*")
    return folder


def kill_when(started: subprocess.Popen[bytes], condition: object) -> None:
    """Sends SIGKILL as soon as `condition()` holds."""
    assert callable(condition)
    deadline = time.monotonic() + 120
    while not condition():
        assert started.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "the run never came to where it was to be killed"
        time.sleep(0.002)
    started.send_signal(signal.SIGKILL)
    started.wait()


def rows(outputs: Path) -> int:
    found = list(outputs.glob("runs/**/metrics.csv"))
    return found[0].read_text().count("\n") if found else 0


def ended(outputs: Path, options: Sequence[str] = OPTIONS) -> Path:
    """The folder of the run once it is finished, in this process, which has torch already."""
    execute(plan(read(compose(normalise_overrides([*options, f"outputs={outputs}"])))))
    return run_folder(outputs)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ended(tmp_path_factory.mktemp("unbroken"))


def assert_same(folder: Path, unbroken: Path) -> None:
    ours, theirs = read_result(folder), read_result(unbroken)
    assert ours.metrics == theirs.metrics
    assert {"test/loss"} < set(theirs.metrics["last"].metrics)
    assert ours.fingerprint == theirs.fingerprint
    assert (folder / "metrics.csv").read_text() == (unbroken / "metrics.csv").read_text()
    for which in ("last", "best"):
        a, b = (torch.load(f / f"model_{which}.pt", weights_only=True) for f in (folder, unbroken))
        assert all(torch.equal(a[name], b[name]) for name in b)


def test_killed_in_mid_epoch_and_between_epochs(unbroken: Path, tmp_path: Path) -> None:
    """The checkpoint after every step makes the second kill fall into an epoch, the first after an evaluation."""
    started = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    kill_when(started, lambda: rows(tmp_path) >= 4)
    interrupted = rows(tmp_path)
    again = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoint = run_folder(tmp_path) / "last.ckpt"
    saved = checkpoint.stat().st_mtime_ns
    kill_when(again, lambda: checkpoint.stat().st_mtime_ns != saved)
    assert rows(tmp_path) >= interrupted - 4
    assert_same(ended(tmp_path), unbroken)


@pytest.mark.parametrize(
    "options",
    [CYCLE, *(pytest.param(options, marks=pytest.mark.slow) for options in (IMAGES, TEXT, PIXELS))],
    ids=["cycle", "images", "text", "pixels"],
)
def test_killed_within_a_schedule(tmp_path: Path, options: Sequence[str]) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    started = subprocess.Popen(command(broken, options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    kill_when(started, lambda: rows(broken) >= 12)
    assert not (run_folder(broken) / "result.json").exists()
    assert_same(ended(broken, options), ended(unbroken, options))


@pytest.mark.slow
def test_killed_again_and_again_wherever_it_is(unbroken: Path, tmp_path: Path) -> None:
    """Kills fall into start-up, epochs, evaluations, the final test and the writing of the result."""
    for attempt in range(40):
        started = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            started.wait(timeout=4 + 0.25 * attempt)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        else:
            assert started.returncode == 0
            break
    assert attempt > 0, "no kill came in time"
    assert_same(run_folder(tmp_path), unbroken)
