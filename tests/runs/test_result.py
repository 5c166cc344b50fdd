from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reattend.errors import ReattendError
from reattend.runs.result import Result, Selected, read_result, write_result

RESULT = Result(
    task="uea/vowels",
    attention="bn",
    backbone="encoder",
    seed=3,
    fingerprint="0123456789ab",
    scale="quick",
    protocol="published",
    fidelity={"name": "published", "batch_norm_over": "all"},
    data="real",
    metrics={
        "last": Selected(20, 100, {"test/accuracy": 0.1 + 0.2, "test/loss": math.inf}),
        "best_on_test": Selected(14, 70, {"test/accuracy": 0.97, "test/loss": math.nan}),
    },
    parameters=1000,
    flops=2000,
    training_flops=None,
    seconds=1.25,
    peak_memory=None,
    device="a processor",
    versions={"torch": "2.9"},
    git_commit=None,
    data_checksums={"train": "a", "test": "b"},
    config={"recipe": {"clip_norm": math.inf}},
)


def test_comes_back_to_the_last_digit(tmp_path: Path) -> None:
    write_result(tmp_path, RESULT)
    found = read_result(tmp_path)
    assert repr(found) == repr(RESULT)  # NaN is not equal to itself
    assert found.metrics["last"].metrics["test/accuracy"] == 0.1 + 0.2


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.99])
def test_half_a_file_is_refused(tmp_path: Path, keep: float) -> None:
    write_result(tmp_path, RESULT)
    path = tmp_path / "result.json"
    text = path.read_text().rstrip()
    path.write_text(text[: int(len(text) * keep)])
    with pytest.raises(ReattendError, match=r"result\.json is cut off or damaged"):
        read_result(tmp_path)


@pytest.mark.parametrize("key", [*(key for key in Result.__dataclass_fields__ if key != "started_from"), "version"])
def test_a_missing_key_is_refused(tmp_path: Path, key: str) -> None:
    content = RESULT.to_json()
    del content[key]
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(ReattendError, match=rf"result\.json is no result of a run: .*{key}"):
        read_result(tmp_path)


@pytest.mark.parametrize(
    "change", [{"version": 99}, {"extra": 1}, {"metrics": {}}, {"metrics": {"last": {"epoch": 1}}}, {"metrics": None}]
)
def test_a_foreign_form_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT.to_json() | change))
    with pytest.raises(ReattendError, match=r"result\.json is no result of a run"):
        read_result(tmp_path)


@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ReattendError, match="no result of a run"):
        read_result(tmp_path)


def test_none_yet(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"result\.json does not exist"):
        read_result(tmp_path)


def test_selection_rules_are_named_and_strict_never_selects_on_test() -> None:
    last = RESULT.metrics["last"]
    with pytest.raises(ValueError, match="last"):
        replace(RESULT, metrics={"best_on_test": last})
    with pytest.raises(ValueError, match="best_on_dev"):
        replace(RESULT, metrics={"last": last, "best_on_dev": last})
    with pytest.raises(ValueError, match="strict"):
        replace(RESULT, protocol="strict")
    replace(RESULT, protocol="strict", metrics={"last": last, "best_on_validation": last})


def test_full_disk_keeps_the_old_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(tmp_path, RESULT)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReattendError, match=r"result\.json cannot be written: the disk is full .* MiB free"):
        write_result(tmp_path, replace(RESULT, seed=4))
    assert read_result(tmp_path).seed == 3
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
