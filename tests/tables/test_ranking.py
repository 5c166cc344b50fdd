"""Ranks over columns."""

from __future__ import annotations

import pytest
from scipy import stats

from reattend.tables.ranking import rank
from reattend.tables.table import Value

ACCURACY = Value("test/accuracy", "higher", "%")
MEANS = {
    "a": {"v": 90.0, "w": 80.0, "x": 70.0, "y": 60.0, "z": 50.0, "only a": 1.0},
    "b": {"v": 89.0, "w": 79.0, "x": 71.0, "y": 59.0, "z": 49.0},
    "c": {"v": 88.0, "w": 78.0, "x": 69.0, "y": 58.0, "z": 49.0},
}


def test_average_ranks_with_ties_and_the_best_first() -> None:
    found = rank("accuracy", ACCURACY, ["a", "b", "c", "never run"], MEANS)
    assert found is not None
    assert found.columns == ("v", "w", "x", "y", "z")
    assert found.average_ranks == pytest.approx({"a": 1.2, "b": 1.9, "c": 2.9})
    columns = [[MEANS[row][column] for column in found.columns] for row in "abc"]
    assert found.friedman_p == pytest.approx(stats.friedmanchisquare(*columns).pvalue)


def test_lower_is_better_turns_the_ranks_round() -> None:
    found = rank("loss", Value("test/loss", "lower"), list("abc"), MEANS)
    assert found is not None
    assert found.average_ranks == pytest.approx({"a": 2.8, "b": 2.1, "c": 1.1})


def test_the_critical_difference_is_demsars() -> None:
    found = rank("accuracy", ACCURACY, list("abc"), MEANS)
    assert found is not None
    # Demsar (2006), Table 5: q = 2.343 for three classifiers.
    assert found.critical_difference == pytest.approx(2.343 * (3 * 4 / (6 * 5)) ** 0.5, abs=1e-3)
    for (first, second), p in found.nemenyi_p.items():
        distance = abs(found.average_ranks[first] - found.average_ranks[second])
        assert (p < 0.05) == (distance > found.critical_difference)


def test_too_few_rows_or_columns_are_not_ranked() -> None:
    assert rank("accuracy", ACCURACY, ["a", "b"], MEANS) is None
    few = {row: {column: x for column, x in means.items() if column in "vwxy"} for row, means in MEANS.items()}
    assert rank("accuracy", ACCURACY, list("abc"), few) is None
    assert rank("accuracy", ACCURACY, ["a"], {}) is None


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("never", [{}, None])
def test_rows_without_a_run_are_left_out_wherever_they_stand(place: int, never: dict[str, float] | None) -> None:
    rows = list("abc")
    rows.insert(place, "never")
    means = {row: found for row in rows if (found := MEANS.get(row, never)) is not None}
    assert rank("accuracy", ACCURACY, rows, means) == rank("accuracy", ACCURACY, list("abc"), MEANS)


@pytest.mark.filterwarnings("error")
def test_equal_rows_share_their_rank_and_do_not_differ() -> None:
    found = rank("accuracy", ACCURACY, list("abc"), {row: MEANS["a"] for row in "abc"})
    assert found is not None
    assert set(found.average_ranks.values()) == {2.0}
    assert found.friedman_p == 1.0
    assert set(found.nemenyi_p.values()) == {1.0}
