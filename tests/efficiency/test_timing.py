"""Side-by-side timing."""

from __future__ import annotations

import pytest

from reattend.efficiency.timing import Ratio, ratio, time_rounds


def test_everything_runs_once_a_round_after_a_warm_up() -> None:
    calls: list[str] = []
    seconds = time_rounds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=4)
    assert calls[:2] == ["a", "b"]
    assert all(sorted(calls[i : i + 2]) == ["a", "b"] for i in range(0, 10, 2))
    assert len(calls) == 10
    assert {name: len(values) for name, values in seconds.items()} == {"a": 4, "b": 4}


def test_a_ratio_is_taken_round_by_round() -> None:
    # Round 3 is slow for both: the ratio of medians would be 2, and no round has more than 1.5.
    found = ratio([1.0, 3.0, 60.0], [2.0, 2.0, 40.0])
    assert found == Ratio(median=1.5, low=1.0, high=1.5)
    assert str(found) == "1.50 (1.00–1.50)"
    assert ratio([3.0], [2.0]) == Ratio(1.5, 1.5, 1.5)


def test_a_ratio_needs_the_same_rounds() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])
