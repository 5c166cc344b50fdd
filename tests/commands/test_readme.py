"""What the README tells a newcomer to type works as written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from reattend.config import check_overrides, check_reach
from reattend.conformance.command import main as check_attention
from reattend.tables.reproduce import OPTIONS
from reattend.tables.request import read_requests
from tests.commands.conftest import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True) for kind, block in BLOCKS if kind == "bash" for line in block.splitlines() if line
]
TRAIN = [command[2:] for command in COMMANDS if command[:2] == ["python", "train.py"]]
TABLES = [command[2:] for command in COMMANDS if command[:2] == ["python", "scripts/reproduce.py"]]
OF_THE_READER = ("my_", "best=outputs")  # files that only the reader has


def is_ours(arguments: list[str]) -> bool:
    return not any(mark in argument for argument in arguments for mark in OF_THE_READER)


@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_every_command_for_a_table_is_understood(arguments: list[str]) -> None:
    assert len(TABLES) >= 4
    for request in read_requests(arguments, OPTIONS):
        assert request.rows


@pytest.mark.parametrize("arguments", [a for a in TRAIN if is_ours(a)], ids=" ".join)
def test_every_train_command_is_accepted(arguments: list[str]) -> None:
    assert len(TRAIN) > 8
    check_overrides(arguments)
    check_reach(arguments)


def test_an_attention_of_ones_own_as_the_readme_has_it(tmp_path: Path) -> None:
    (source,) = (block for kind, block in BLOCKS if kind == "python" and "(Mixer)" in block)
    (arguments,) = (a for a in TRAIN if "attention=custom" in a)
    (tmp_path / "my_attention.py").write_text(source)
    command = [sys.executable, str(ROOT / "train.py"), *arguments, "data=standin", "recipe.epochs=2"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("outputs/runs/uea/japanese_vowels/custom-MeanPooling/uea_encoder/s0-*/result.json"))


def test_a_kernel_of_ones_own_as_the_readme_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = (block for kind, block in BLOCKS if kind == "python" and "(Kernel)" in block)
    (arguments,) = (a for a in TRAIN if any("my_kernel" in argument for argument in a))
    (tmp_path / "my_kernel.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    code = check_attention([*(argument for argument in arguments if argument != "scale=quick"), "scaling=false"])
    sys.modules.pop("my_kernel", None)
    assert code == 0, capsys.readouterr()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command[0] == "make"], ids=" ".join)
def test_make_targets_exist_and_name_tables_that_do(command: list[str]) -> None:
    printed = subprocess.run(["make", "-n", *command[1:]], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for line in printed.splitlines():
        _, found, arguments = line.partition("scripts/reproduce.py ")
        if found:
            read_requests(shlex.split(arguments), OPTIONS)
