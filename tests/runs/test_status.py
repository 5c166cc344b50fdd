from __future__ import annotations

import os
from pathlib import Path

import pytest

from reattend.errors import ReattendError
from reattend.runs.status import mark, read_status


def test_a_life(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    states = []
    for state, error in [
        ("planned", None),
        ("running", None),
        ("failed", ReattendError("the disk is full")),
        ("planned", None),
        ("running", None),
        ("done", None),
    ]:
        mark(tmp_path, state, error)  # type: ignore[arg-type]
        status = read_status(tmp_path)
        assert status is not None
        assert status.pid == os.getpid()
        assert status.host == os.uname().nodename
        states.append((status.state, status.attempts, status.error))
    failure = {"type": "ReattendError", "message": "the disk is full"}
    assert states == [
        ("planned", 0, None),
        ("running", 1, None),
        ("failed", 1, failure),
        ("failed", 1, failure),  # planning again does not hide that it failed
        ("running", 2, None),
        ("done", 2, None),
    ]


def test_what_is_returned_is_what_is_read(tmp_path: Path) -> None:
    assert mark(tmp_path, "running") == read_status(tmp_path)


def test_only_failures_have_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="failed run has an error"):
        mark(tmp_path, "failed")
    with pytest.raises(ValueError, match="failed run has an error"):
        mark(tmp_path, "done", ReattendError("what?"))


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_cut_file_is_named(tmp_path: Path, keep: float) -> None:
    mark(tmp_path, "running")
    path = tmp_path / "status.json"
    text = path.read_text()
    path.write_text(text[: int(len(text) * keep)])
    with pytest.raises(ReattendError, match=r"status\.json is cut off or damaged"):
        read_status(tmp_path)


@pytest.mark.parametrize("content", ["[]", '{"state": "running"}'])
def test_a_foreign_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "status.json").write_text(content)
    with pytest.raises(ReattendError, match=r"status\.json is no status"):
        read_status(tmp_path)
