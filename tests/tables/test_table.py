"""What the values of a table are of a run."""

from __future__ import annotations

import pytest

from reattend.runs.result import Result
from reattend.tables.aggregate import number_of
from reattend.tables.table import Value
from tests.tables.finished import finished


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Of a run of 100 seconds, 400 epochs and 2,000 steps."""
    return finished(tmp_path_factory.mktemp("outputs"), 0.9, 0)


@pytest.mark.parametrize(
    ("metric", "unit", "number"),
    [
        ("seconds", "s", 100.0),
        ("seconds_per_epoch", "s", 0.25),
        ("seconds_per_step", "s/1K steps", 50.0),
        ("steps_per_second", "it/s", 20.0),
        ("peak_memory", "GB", 1.0),
    ],
)
def test_figures_of_a_run(result: Result, metric: str, unit: str, number: float) -> None:
    assert number_of(result, Value(metric, "lower", unit)) == pytest.approx(number)
