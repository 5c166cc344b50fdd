"""Side-by-side timing."""

from __future__ import annotations

from reattend.efficiency.timing import compare


def test_the_baseline_is_one_and_everything_runs_once_a_round_after_a_warm_up() -> None:
    calls = {"a": 0, "b": 0}

    def counting(name: str) -> None:
        calls[name] += 1

    timings = compare({"a": lambda: counting("a"), "b": lambda: counting("b")}, "a", rounds=4)
    assert calls == {"a": 5, "b": 5}
    assert timings["a"].low == timings["a"].ratio == timings["a"].high == 1.0
    assert timings["b"].low <= timings["b"].ratio <= timings["b"].high
