"""`python scripts/reproduce.py` and the make targets over it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reattend.runs.result import read_result
from reattend.tables.reproduce import main
from reattend.tables.request import Request
from tests.commands.conftest import ROOT, run_folders
from tests.small_run import SMALL

EVERY_KEY = {
    "scale": "quick",
    "seeds": "3",
    "rows": "softmax,bn_sh",
    "columns": "JapaneseVowels",
    "launcher": "slurm",
    "protocol": "strict",
    "data": "standin",
    "workers": "2",
    "plan": "true",
}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Which table?"),
        (["table=primal_dual/table12"], "There is no table 'primal_dual/table12'. Did you mean 'primal_dual/table"),
        (["table=primal_dual/table1", "plan=yes"], "plan=yes: true or false"),
        (["table=primal_dual/table1", "workers=0"], "workers=0: a whole number, at least 1"),
        (["table=primal_dual/table1", "retries=often"], "retries=often: a whole number, at least 0"),
        (["table=primal_dual/table1", "launcher=slurmm"], "Did you mean 'slurm'?"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_a_plan_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned: list[Request] = []
    monkeypatch.setattr("reattend.tables.plan_page.show", planned.append)
    given = ["table=primal_dual/table1", "launcher=slurm_8xv100", f"outputs={tmp_path / 'out'}"]
    assert main([*given, "plan=true"]) == 0
    assert "a V100 has no bfloat16; trainer.precision=16-mixed is faster there" in capsys.readouterr().out
    assert [request.name for request in planned] == ["primal_dual/table1"]
    assert not (tmp_path / "out").exists()


# The tests may be run by make themselves, which then tells an inner make how to print.
OUTSIDE_MAKE = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def printed_by_make(*arguments: str) -> str:
    """The last command that make would run."""
    command = ["make", "-n", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=OUTSIDE_MAKE, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["reproduce-table2"], "table=primal_dual/table2"),
        (["reproduce-primal_attention-table1", "SEEDS=3"], "table=primal_attention/table1 seeds=3"),
        (
            ["reproduce-table1", *(f"{key.upper()}={value}" for key, value in EVERY_KEY.items())],
            " ".join(["table=primal_dual/table1", *(f"{key}={value}" for key, value in EVERY_KEY.items())]),
        ),
    ],
)
def test_make_passes_on_what_is_given_and_nothing_else(arguments: list[str], command: str) -> None:
    shown = subprocess.run(
        ["make", "-n", *arguments], cwd=ROOT, env=OUTSIDE_MAKE, capture_output=True, text=True, check=True
    ).stdout
    assert shown.splitlines()[-1].strip() == f".venv/bin/python scripts/reproduce.py {command}"


def test_make_reproduces_all_tables() -> None:
    shown = subprocess.run(
        ["make", "-n", "reproduce-all"], cwd=ROOT, env=OUTSIDE_MAKE, capture_output=True, text=True, check=True
    ).stdout
    assert shown.splitlines()[-1].strip() == ".venv/bin/python scripts/reproduce.py table=all"


def reproduce(outputs: Path, *arguments: str) -> subprocess.Popen[str]:
    """On two workers, small runs of one data set."""
    request = ["table=primal_dual/table1", "columns=JapaneseVowels", "rows=softmax,bn", "seeds=2"]
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "reproduce.py"), *request, *SMALL, f"outputs={outputs}", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_table_stopped_and_killed_on_the_way_ends_with_the_digits_of_an_unbroken_one(tmp_path: Path) -> None:
    unbroken = reproduce(tmp_path / "unbroken", "recipe.epochs=12")
    out, err = unbroken.communicate(timeout=600)
    assert unbroken.returncode == 0, out + err
    assert "4 of 4 runs done." in out
    broken, checkpoints = tmp_path / "broken", "trainer.checkpoint_seconds=0"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)):
        process = reproduce(broken, "recipe.epochs=12", checkpoints, "launcher=processes", "workers=2")
        known = {path: path.stat().st_mtime_ns for path in broken.glob("runs/**/last.ckpt")}
        deadline = time.monotonic() + 300
        while all(known.get(path) == path.stat().st_mtime_ns for path in broken.glob("runs/**/last.ckpt")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, out + err
    again = reproduce(broken, "recipe.epochs=12", checkpoints, "launcher=processes", "workers=2")
    out, err = again.communicate(timeout=600)
    assert again.returncode == 0, out + err
    results = [[read_result(folder) for folder in run_folders(tmp_path / name)] for name in ("unbroken", "broken")]
    assert [r.fingerprint for r in results[0]] == [r.fingerprint for r in results[1]]
    assert [r.metrics for r in results[0]] == [r.metrics for r in results[1]]
