from __future__ import annotations

import errno
import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reattend.errors import ReattendError
from reattend.runs.files import read_json, replacing, write_bytes, write_json

from .processes import kill, started

WRITE_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
from reattend.runs.files import write_json
for number in count():
    write_json(Path(sys.argv[1]), [number] * 50_000)
    if number == 0:
        print("begun")
"""

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def json_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json") / "value.json"


@given(value=values)
def test_json_comes_back_as_it_was(json_path: Path, value: Any) -> None:
    write_json(json_path, value)
    assert repr(read_json(json_path, "")) == repr(value)


def test_the_file_is_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": math.nan, "b": [math.inf]})
    assert "NaN" not in path.read_text()
    assert "Infinity" not in path.read_text()


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05])
def test_kill_leaves_the_old_or_the_new_file(tmp_path: Path, delay: float) -> None:
    path = tmp_path / "value.json"
    with started(WRITE_FOR_EVER, path) as process:
        time.sleep(delay)
        kill(process)
    value = read_json(path, "")
    assert len(value) == 50_000
    assert len(set(value)) == 1


def test_a_failing_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        fail_after(temporary)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def fail_after(temporary: Path) -> None:
    temporary.write_text("ne")
    raise ZeroDivisionError


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_named_with_the_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path = tmp_path / "new" / "result.json"

    def full(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReattendError, match=r"MiB free") as caught:
        write_bytes(path, b"new")
    assert str(path) in str(caught.value)
    assert list(path.parent.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_really_full_disk(small_disk: Path) -> None:
    path = small_disk / "result.json"
    write_bytes(path, b"old")
    with pytest.raises(ReattendError, match=r"disk is full \(\d+\.\d MiB free"):
        write_bytes(path, bytes(200_000))
    assert path.read_bytes() == b"old"
    assert list(small_disk.iterdir()) == [path]


def test_other_errors_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReattendError, match=r"cannot be written: File exists|cannot be written: Not a directory"):
        write_bytes(tmp_path / "file" / "result.json", b"")


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe"])
def test_damaged_json_is_named_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(content)
    with pytest.raises(ReattendError, match=r"value\.json is cut off or damaged .*: mend it"):
        read_json(path, "mend it")


def test_missing_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"value\.json does not exist: make it"):
        read_json(tmp_path / "value.json", "make it")
