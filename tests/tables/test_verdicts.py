"""Equivalence with a published number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from reattend.tables.verdicts import compare
from tests.tables.examples import measured

NUMBERS = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=3, max_size=8)


def test_the_interval_and_the_verdict_are_those_of_the_two_one_sided_tests() -> None:
    ours = [70.1, 70.9, 70.4, 70.6]
    for margin in (0.2, 0.6, 0.75, 0.9, 1.5):
        made = compare(measured(*ours), 70.2, margin)
        p = DescrStatsW(np.array(ours) - 70.2).ttost_mean(-margin, margin)[0]
        assert (made.verdict == "reproduced") == (p < 0.05)
        interval = stats.ttest_1samp(ours, 70.2).confidence_interval(0.9)
        assert made.interval == pytest.approx((interval.low - 70.2, interval.high - 70.2))


def test_a_known_spread_of_the_published_runs_widens_the_interval_as_welch_says() -> None:
    ours, theirs = [70.1, 70.9, 70.4], [69.0, 71.0, 70.0, 70.4, 69.6]
    made = compare(measured(*ours), np.mean(theirs), 1.0, np.std(theirs, ddof=1), len(theirs))
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.9)
    assert made.interval == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("number", "verdict"), [(70.0, "reproduced"), (75.0, "different"), (65.0, "different"), (71.0, "undecided")]
)
def test_each_verdict(number: float, verdict: str) -> None:
    assert compare(measured(69.9, 70.0, 70.1), number, 1.0).verdict == verdict


def test_equal_seeds_are_judged_without_spread() -> None:
    assert compare(measured(70.0, 70.0, 70.0), 70.4, 0.5).verdict == "reproduced"
    assert compare(measured(70.0, 70.0, 70.0), 70.6, 0.5).verdict == "different"
    assert compare(measured(70.0, 70.0, 70.0), 70.6, 0.5, 1.0, 5).verdict == "undecided"


@settings(deadline=None)
@given(NUMBERS, st.floats(-100, 100), st.floats(0.1, 50), st.floats(1.0, 5.0))
def test_a_wider_margin_never_takes_a_reproduction_back(
    ours: list[float], number: float, margin: float, factor: float
) -> None:
    narrow, wide = compare(measured(*ours), number, margin), compare(measured(*ours), number, factor * margin)
    if narrow.verdict == "reproduced":
        assert wide.verdict == "reproduced"
    if wide.verdict == "different":
        assert narrow.verdict == "different"


@settings(deadline=None)
@given(NUMBERS, st.floats(-100, 100), st.floats(0.1, 50))
def test_shifting_both_sides_changes_nothing(ours: list[float], number: float, margin: float) -> None:
    here = compare(measured(*ours), number, margin)
    there = compare(measured(*(x + 16 for x in ours)), number + 16, margin)
    assert there.difference == pytest.approx(here.difference, abs=1e-9)
    assert there.interval == pytest.approx(here.interval, abs=1e-6)


def test_further_seeds_are_those_that_decide_four_times_in_five() -> None:
    made = compare(measured(69.0, 70.0, 71.0), 70.0, 1.0)
    assert made.verdict == "undecided"
    assert made.more_seeds is not None
    rng, count, decided = np.random.default_rng(0), 3 + made.more_seeds, 0
    for _ in range(400):
        decided += compare(measured(*rng.normal(70.0, 1.0, count)), 70.0, 1.0).verdict == "reproduced"
    assert 0.6 < decided / 400 < 0.95


def test_no_number_of_seeds_decides_a_difference_that_is_the_margin() -> None:
    assert compare(measured(69.0, 70.0, 71.0), 71.0, 1.0).more_seeds is None


def test_two_seeds_are_too_few() -> None:
    with pytest.raises(ValueError, match="2 seeds"):
        compare(measured(1.0, 2.0), 1.0, 1.0)
