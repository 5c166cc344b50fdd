from __future__ import annotations

from pathlib import Path

import pytest

from reattend.errors import ReattendError
from reattend.runs.sweep import FAILURES, collected_failures, record_failure

from .processes import start

FAIL = """
import sys
from reattend.runs.sweep import record_failure
for number in range(50):
    record_failure(f"{sys.argv[1]}-{number}", ValueError("x" * 2000 + "\\n" + sys.argv[1]))
"""


def test_without_a_sweep_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FAILURES, raising=False)
    record_failure(tmp_path, ReattendError("x"))
    assert collected_failures() == []


def test_failures_come_back_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FAILURES, str(tmp_path / "failures"))
    assert collected_failures() == []
    record_failure(Path("outputs/a"), ReattendError("first\nline"))
    record_failure("attention=bn", ZeroDivisionError("second"))
    assert [str(failure) for failure in collected_failures()] == [
        "outputs/a: ReattendError: first\nline",
        "attention=bn: ZeroDivisionError: second",
    ]


def test_processes_do_not_mix_their_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FAILURES, str(tmp_path / "failures"))
    processes = [start(FAIL, name) for name in "abc"]
    for process in processes:
        process.communicate()
    found = collected_failures()
    assert len(found) == 150
    assert {failure.message for failure in found} == {"x" * 2000 + "\n" + name for name in "abc"}
    assert [failure.run for failure in found if failure.run[0] == "a"] == [f"a-{number}" for number in range(50)]
