"""Equivalence with a published number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from reattend.tables.evidence import PlaceEvidence
from reattend.tables.table import Place, PublishedNumbers, Setting, Table, Value
from reattend.tables.verdicts import Comparison, compare, judge_place
from reattend.tables.welch import Effect, Sample
from tests.tables.examples import measured

NUMBERS = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=3, max_size=8)


def compared(
    ours: Sequence[float], number: float, margin: float, spread: float | None = None, runs: int = 0
) -> Comparison:
    sample = measured(*ours).sample
    theirs = (Sample(number, spread, runs),) if spread is not None else ()
    return compare(Effect(sample.mean - number, (sample,), theirs), -margin, margin)


def test_the_interval_and_the_verdict_are_those_of_the_two_one_sided_tests() -> None:
    ours = [70.1, 70.9, 70.4, 70.6]
    for margin in (0.2, 0.6, 0.75, 0.9, 1.5):
        made = compared(ours, 70.2, margin)
        p = DescrStatsW(np.array(ours) - 70.2).ttost_mean(-margin, margin)[0]
        assert (made.verdict == "reproduced") == (p < 0.05)
        interval = stats.ttest_1samp(ours, 70.2).confidence_interval(0.9)
        assert made.interval == pytest.approx((interval.low - 70.2, interval.high - 70.2))


def test_a_known_spread_of_the_published_runs_widens_the_interval_as_welch_says() -> None:
    ours, theirs = [70.1, 70.9, 70.4], [69.0, 71.0, 70.0, 70.4, 69.6]
    made = compared(ours, float(np.mean(theirs)), 1.0, float(np.std(theirs, ddof=1)), len(theirs))
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.9)
    assert made.interval == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("number", "verdict"), [(70.0, "reproduced"), (75.0, "different"), (65.0, "different"), (71.0, "undecided")]
)
def test_each_verdict(number: float, verdict: str) -> None:
    assert compared([69.9, 70.0, 70.1], number, 1.0).verdict == verdict


def test_equal_seeds_are_judged_without_spread() -> None:
    assert compared([70.0] * 3, 70.4, 0.5).verdict == "reproduced"
    assert compared([70.0] * 3, 70.6, 0.5).verdict == "different"
    assert compared([70.0] * 3, 70.6, 0.5, 1.0, 5).verdict == "undecided"
    assert compared([70.0] * 3, 70.6, 0.5, 1.0, 5).more_seeds is None  # only the published spread is in the way


@settings(deadline=None, max_examples=20)
@given(NUMBERS, st.floats(-100, 100), st.floats(0.1, 50), st.floats(1.0, 5.0))
def test_a_wider_margin_never_takes_a_reproduction_back(
    ours: list[float], number: float, margin: float, factor: float
) -> None:
    narrow, wide = compared(ours, number, margin), compared(ours, number, factor * margin)
    if narrow.verdict == "reproduced":
        assert wide.verdict == "reproduced"
    if wide.verdict == "different":
        assert narrow.verdict == "different"


@settings(deadline=None, max_examples=20)
@given(NUMBERS, st.floats(-100, 100), st.floats(0.1, 50))
def test_shifting_both_sides_changes_nothing(ours: list[float], number: float, margin: float) -> None:
    here = compared(ours, number, margin)
    there = compared([x + 16 for x in ours], number + 16, margin)
    assert there.interval == pytest.approx(here.interval, abs=1e-6)


@pytest.mark.parametrize(
    ("number", "margin"), [(70.0, 1.0), (70.0, 0.5), (70.5, 1.0), (71.5, 1.0), (70.9, 0.4), (71.9, 0.3)]
)
def test_further_seeds_are_those_that_decide_four_times_in_five(number: float, margin: float) -> None:
    ours = [69.0, 70.0, 71.0]  # mean 70, standard deviation 1
    made = compared(ours, number, margin)
    assert made.verdict == "undecided"
    assert made.more_seeds is not None
    wanted = "reproduced" if abs(number - 70.0) < margin else "different"
    rng, count = np.random.default_rng(0), 3 + made.more_seeds
    drawn = rng.normal(70.0, 1.0, (1000, count))
    half = stats.t.ppf(0.95, count - 1) * drawn.std(1, ddof=1) / math.sqrt(count)
    low, high = drawn.mean(1) - half - number, drawn.mean(1) + half - number
    decided = (low > -margin) & (high < margin) if wanted == "reproduced" else (low >= margin) | (high <= -margin)
    assert 0.7 < decided.mean() < 0.9


def test_no_number_of_seeds_decides_a_difference_that_is_the_margin() -> None:
    assert compared([69.0, 70.0, 71.0], 71.0, 1.0).more_seeds is None


TABLE = Table(
    title="Two rows",
    paper="a paper",
    average="one run",
    seeds=3,
    values={"memory": Value("peak_memory", "lower", "GB", margin=0.1, relative_to="base")},
    rows={row: Setting([]) for row in ("ours", "base")},
    columns={"x": Setting([]), "y": Setting([])},
    mean="Average",
)
OURS, BASE = Place("ours", "x", "memory"), Place("base", "x", "memory")


def ratio(
    ours: Sequence[float],
    base: Sequence[float],
    published: tuple[float | list[float], float | list[float]],
    **changes: int,
) -> PlaceEvidence:
    """`base` seeds may be fewer; `changes` are of the block of published numbers and the value."""
    block = PublishedNumbers(
        "memory", "read", "page 1", {"ours": {"x": published[0]}, "base": {"x": published[1]}}, changes.get("runs")
    )
    value = Value("peak_memory", "lower", "GB", digits=changes.get("digits", 4), margin=0.1, relative_to="base")
    table = Table(**(vars(TABLE) | {"published": [block], "values": {"memory": value}}))
    return judge_place(table, OURS, {OURS: measured(*ours), BASE: measured(*base)}, "", "", True)


@pytest.mark.parametrize("size", [0.001, 1.0, 50.0])
def test_the_margin_of_a_ratio_is_a_factor_whatever_its_size(size: float) -> None:
    ours, base = [size * x for x in (0.999, 1.0, 1.001)], [0.999, 1.0, 1.001]
    for factor, verdict in ((1.0, "reproduced"), (1.09, "reproduced"), (0.92, "reproduced"), (1.12, "different")):
        made = ratio(ours, base, (100 * size / factor, 100.0))
        assert made.verdict == verdict
        assert made.effect == pytest.approx(factor, rel=1e-6)
        assert made.compared == pytest.approx((size, size / factor), rel=1e-6)


def test_a_ratio_is_tested_by_welch_on_the_logarithms_of_both_groups() -> None:
    ours, base = [1.0, 1.02, 0.99, 1.01], [2.0, 2.1, 1.9]
    made = ratio(ours, base, (1.0, 2.0))
    expected = stats.ttest_ind(np.log(ours), np.log(base), equal_var=False).confidence_interval(0.9)
    assert made.interval == pytest.approx((2 * math.exp(expected.low), 2 * math.exp(expected.high)), rel=5e-3)


def test_a_ratio_needs_three_seeds_of_both_sides() -> None:
    made = ratio([1.0, 1.0, 1.0], [2.0], (1.0, 2.0))
    assert (made.verdict, made.why) == ("not compared", "base has 1 of at least 3 seeds")
    assert made.effect == pytest.approx(1.0)
    assert ratio([1.0, 1.0], [2.0, 2.0], (1.0, 2.0)).why == "2, base has 2 of at least 3 seeds"


def test_rounding_of_both_printed_numbers_widens_the_margin_of_a_ratio() -> None:
    # 1.5 / 0.3 may be anything from 1.45 / 0.35 = 4.14 to 1.55 / 0.25 = 6.2.
    for quotient, verdict in ((3.8, "reproduced"), (6.7, "reproduced"), (3.7, "different"), (6.9, "different")):
        made = ratio([quotient] * 3, [1.0] * 3, (1.5, 0.3), digits=1)
        assert made.verdict == verdict
    assert "too small for the digits" in ratio([1.0] * 3, [1.0] * 3, (1.5, 0.04), digits=1).why


def test_published_spreads_take_part_in_a_ratio() -> None:
    exact, spread = (ratio([1.0, 1.02, 0.98], [1.0] * 3, ([2.0, 0.4], [2.0, 0.2]), runs=n) for n in (1, 5))
    assert exact.verdict == "reproduced"
    assert spread.verdict == "undecided"


def test_a_noisy_baseline_does_not_make_false_reproductions() -> None:
    """At the margin itself a reproduction is false, and the test makes at most one in twenty."""
    rng, false = np.random.default_rng(0), 0
    for _ in range(300):
        ours, base = rng.normal(1.1, 0.055, 3).tolist(), rng.normal(1.0, 0.05, 3).tolist()
        false += ratio(ours, base, (1.0, 1.0)).verdict == "reproduced"
    assert false / 300 <= 0.06


def test_a_spread_of_a_mean_over_columns_is_not_used() -> None:
    mean = Place("ours", "Average", "score")
    block = PublishedNumbers("score", "read", "page 1", {"ours": {"x": [70.0, 9.0], "Average": [70.0, 9.0]}}, 3)
    values = {"score": Value("test/score", "higher", margin=1.0)}
    table = Table(**(vars(TABLE) | {"published": [block], "values": values}))
    numbers = {place: measured(70.0, 70.1, 69.9) for place in (mean, Place("ours", "x", "score"))}
    average = judge_place(table, mean, numbers, "", "one seed", True)
    assert average.verdict == "reproduced"
    assert average.left_out.startswith("one seed; the published spread of a mean over columns")
    column = judge_place(table, Place("ours", "x", "score"), numbers, "", "", True)
    assert (column.verdict, column.left_out) == ("undecided", "")
