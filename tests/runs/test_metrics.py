from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reattend.errors import ReattendError
from reattend.runs.metrics import MetricRow, MetricsFile, read_metrics

from .processes import kill, started

APPEND_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
from reattend.runs.metrics import MetricsFile
file = MetricsFile(Path(sys.argv[1]))
for step in count():
    file.append(0, step, {"loss": 1 / (step + 1), "accuracy": step / 3})
    if step == 100:
        print("begun")
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics") / "metrics.csv"


def rows(steps: int) -> list[MetricRow]:
    return [MetricRow(step // 4, step, name, step / 7) for step in range(steps) for name in ("loss", "accuracy")]


def written(path: Path, wanted: list[MetricRow]) -> None:
    path.unlink(missing_ok=True)
    for row in wanted:
        MetricsFile(path).append(row.epoch, row.step, {row.metric: row.value})


@given(st.floats(), st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8))
def test_values_keep_every_digit(path: Path, value: float, name: str) -> None:
    path.unlink(missing_ok=True)
    MetricsFile(path).append(1, 2, {name: value})
    [row] = read_metrics(path)
    assert (row.epoch, row.step, row.metric) == (1, 2, name)
    assert row.value == value or (math.isnan(row.value) and math.isnan(value))


def test_long_form(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.csv")
    file.append(1, 5, {"train/loss": 0.1 + 0.2, "train/accuracy": 1})
    assert file.path.read_text() == (
        "epoch,step,metric,value\n1,5,train/loss,0.30000000000000004\n1,5,train/accuracy,1.0\n"
    )


@given(torn=st.integers(min_value=0, max_value=400), step=st.integers(min_value=-1, max_value=12))
def test_cut_back_after_a_kill_at_any_byte(path: Path, torn: int, step: int) -> None:
    """What is left is what an unbroken run has up to that step, as far as it was written."""
    written(path, rows(10))
    whole = path.read_bytes()[:torn]
    path.write_bytes(whole)
    expected = [row for row in rows(10)[: max(0, whole.count(b"\n") - 1)] if row.step <= step]
    MetricsFile(path).cut_back(step)
    assert read_metrics(path) == expected
    MetricsFile(path).append(9, 99, {"loss": 0.5})
    assert read_metrics(path) == [*expected, MetricRow(9, 99, "loss", 0.5)]


def test_resumed_file_equals_an_unbroken_one(tmp_path: Path) -> None:
    broken, unbroken = tmp_path / "broken.csv", tmp_path / "unbroken.csv"
    written(unbroken, rows(10))
    written(broken, rows(8))
    MetricsFile(broken).cut_back(5)
    for row in rows(10):
        if row.step > 5:
            MetricsFile(broken).append(row.epoch, row.step, {row.metric: row.value})
    assert broken.read_bytes() == unbroken.read_bytes()


def test_really_killed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    with started(APPEND_FOR_EVER, path) as process:
        kill(process)
    found = read_metrics(path)
    assert len(found) > 200
    assert [row.step for row in found[::2]] == list(range((len(found) + 1) // 2))
    MetricsFile(path).cut_back(50)
    assert read_metrics(path)[-1] == MetricRow(0, 50, "accuracy", 50 / 3)


def test_cut_back_without_a_file(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "metrics.csv").cut_back(3)
    assert list(tmp_path.iterdir()) == []


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,metric,value\n1,2,loss,0.5\n1,2,lo\n1,3,loss,0.5\n")
    with pytest.raises(ReattendError, match=r"metrics\.csv, line 3: expected epoch,step,metric,value, found '1,2,lo'"):
        read_metrics(path)


def test_missing_and_unwritable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match="cannot be read"):
        read_metrics(tmp_path / "metrics.csv")
    with pytest.raises(ReattendError, match="cannot be written"):
        MetricsFile(tmp_path / "no folder" / "metrics.csv").append(0, 0, {"loss": 0.0})
