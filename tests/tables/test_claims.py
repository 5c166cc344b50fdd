"""Claims against the paper's own margin."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Literal, cast

import numpy as np
import pytest
from scipy import stats

from reattend.tables.claims import judge_claim, with_corrections
from reattend.tables.evidence import ClaimEvidence, Measured
from reattend.tables.results import Found
from reattend.tables.table import Claim, Place
from tests.tables.examples import measured

CLAIM = Claim(
    text="a is more than 1 point above b",
    certainty="read",
    source="section 4",
    left=Place("a", "x", "accuracy"),
    right=Place("b", "x", "accuracy"),
    at_least=1.0,
)
HIGH, LOW = [72.1, 72.4, 71.9, 72.6], [70.0, 70.3, 70.2]


def run_of(fingerprint: str) -> Found:
    """A run of which only the identity counts."""
    return cast(Found, SimpleNamespace(result=SimpleNamespace(fingerprint=fingerprint)))


def verdict(claim: Claim, left: Measured | None, right: Measured | None) -> ClaimEvidence:
    return with_corrections([judge_claim("c", claim, left, right)])[0]


def test_a_difference_is_tested_by_welch_against_the_claims_own_margin() -> None:
    found = judge_claim("c", CLAIM, measured(*HIGH), measured(*LOW))
    expected = stats.ttest_ind(np.array(HIGH) - 1.0, LOW, equal_var=False, alternative="greater")
    assert found.p == pytest.approx(expected.pvalue)
    interval = stats.ttest_ind(HIGH, LOW, equal_var=False).confidence_interval(0.9)
    assert found.interval == pytest.approx((interval.low, interval.high))
    assert found.effect == pytest.approx(np.mean(HIGH) - np.mean(LOW))


def test_each_verdict() -> None:
    assert verdict(CLAIM, measured(*HIGH), measured(*LOW)).verdict == "supported"
    assert verdict(CLAIM, measured(*LOW), measured(*HIGH)).verdict == "contradicted"
    undecided = verdict(CLAIM, measured(70.0, 72.0, 74.0), measured(69.0, 70.0, 71.0))
    assert undecided.verdict == "undecided"
    assert undecided.more_seeds is not None
    assert undecided.more_seeds > 0
    assert verdict(CLAIM, None, measured(*LOW)).why == "no finished run of a on x"
    assert verdict(CLAIM, measured(1.0, 2.0), measured(*LOW)).why == "a on x has 2 of at least 3 seeds"


def test_better_by_less_than_the_margin_is_against_the_claim() -> None:
    assert verdict(CLAIM, measured(70.5, 70.51, 70.49), measured(70.0, 70.01, 69.99)).verdict == "contradicted"


def test_two_bounds_are_an_equivalence() -> None:
    claim = dataclasses.replace(CLAIM, at_least=-0.5, at_most=0.5)
    assert verdict(claim, measured(70.0, 70.1, 69.9), measured(70.0, 70.05, 70.0)).verdict == "supported"
    assert verdict(claim, measured(*HIGH), measured(*LOW)).verdict == "contradicted"
    assert verdict(claim, measured(69.0, 70.0, 71.0), measured(69.0, 70.0, 71.0)).verdict == "undecided"


@pytest.mark.parametrize("others", [0, 11])
@pytest.mark.parametrize(
    ("difference", "low", "high", "wanted"),
    [(1.0, 0.0, None, "supported"), (0.6, -2.0, 2.0, "supported"), (-1.0, 0.0, None, "contradicted")],
)
def test_further_seeds_decide_four_times_in_five_among_other_claims(
    others: int, difference: float, low: float, high: float | None, wanted: str
) -> None:
    """The others are further undecided claims, for which Holm's correction leaves this one less."""
    claim = dataclasses.replace(CLAIM, at_least=low, at_most=high)
    spread = np.array([-1.0, 0.0, 1.0])
    undecided = judge_claim("c", claim, measured(*(70.0 + difference + spread)), measured(*(70.0 + spread)))
    vague = [
        dataclasses.replace(undecided, name=f"other {i}", p=0.5 + i / 100, p_against=0.5 + i / 100)
        for i in range(others)
    ]
    advised = with_corrections([undecided, *vague])[0]
    assert advised.verdict == "undecided"
    assert advised.more_seeds is not None
    rng, count, decided = np.random.default_rng(others), 3 + advised.more_seeds, 0
    for _ in range(150):
        left, right = rng.normal(70.0 + difference, 1.0, count), rng.normal(70.0, 1.0, count)
        again = judge_claim("c", claim, measured(*left), measured(*right))
        p = again.p if wanted == "supported" else again.p_against
        assert p is not None
        decided += p * (others + 1) < 0.05
    assert 0.7 < decided / 150 < 0.9


def test_claims_that_are_decided_leave_more_to_the_others() -> None:
    weak = [judge_claim(f"w{i}", CLAIM, measured(71.0, 72.0, 73.0), measured(69.0, 70.0, 71.0)) for i in range(2)]
    sure = [judge_claim(f"s{i}", CLAIM, measured(90.0, 90.1, 90.2), measured(70.0, 70.1, 70.2)) for i in range(10)]
    alone, among = (with_corrections(claims)[0].more_seeds for claims in (weak, [*weak, *sure]))
    assert alone is not None
    assert alone == among


def test_seeds_that_all_agree_on_the_bound_decide_nothing_however_many() -> None:
    found = verdict(CLAIM, measured(71.0, 71.0, 71.0), measured(70.0, 70.0, 70.0))
    assert (found.verdict, found.more_seeds) == ("undecided", None)
    assert found.why == "all seeds agree, and the effect is the claim's bound"


def test_an_unconfirmed_claim_is_not_judged_and_takes_no_part_in_the_correction() -> None:
    unconfirmed = judge_claim("u", dataclasses.replace(CLAIM, certainty="unconfirmed"), measured(*HIGH), measured(*LOW))
    alone = judge_claim("c", CLAIM, measured(*HIGH), measured(*LOW))
    found = with_corrections([unconfirmed, alone])
    assert (found[0].verdict, found[0].why) == ("not compared", "the claim is unconfirmed")
    assert found[0].interval is None
    assert found[1].adjusted_p == alone.p


@pytest.mark.parametrize("by", ["difference", "ratio"])
def test_two_values_of_the_same_runs_are_tested_as_pairs(by: Literal["difference", "ratio"]) -> None:
    """The seeds scatter by far more than the two values of one run differ."""
    runs = [run_of(str(seed)) for seed in range(4)]
    right = np.array([70.0, 75.0, 80.0, 85.0])
    left = right + np.array([0.3, 0.2, 0.35, 0.25])
    claim = dataclasses.replace(CLAIM, by=by, at_least=0.0 if by == "difference" else 1.0)
    one, other = (Measured(dict(enumerate(numbers.tolist())), tuple(runs)) for numbers in (left, right))
    found = judge_claim("c", claim, one, other)
    scale = np.log if by == "ratio" else np.asarray
    test = stats.ttest_rel(scale(left), scale(right), alternative="greater")
    assert found.p == pytest.approx(test.pvalue)
    assert with_corrections([found])[0].verdict == "supported"
    ends = stats.ttest_rel(scale(left), scale(right)).confidence_interval(0.9)
    back = np.exp if by == "ratio" else np.asarray
    assert found.interval == pytest.approx((float(back(ends.low)), float(back(ends.high))))
    apart = Measured(other.by_seed, tuple(run_of(f"other {seed}") for seed in range(4)))
    assert with_corrections([judge_claim("c", claim, one, apart)])[0].verdict == "undecided"


def test_pairs_need_three_seeds_in_common() -> None:
    runs = [run_of(str(seed)) for seed in range(5)]
    left = Measured({0: 1.0, 1: 2.0, 2: 3.0}, tuple(runs[:3]))
    right = Measured({1: 1.0, 2: 2.0, 3: 3.0}, tuple(runs[1:4]))
    assert judge_claim("c", CLAIM, left, right).why == "both sides have 2 of at least 3 seeds in common"


def test_a_ratio_is_one_of_means() -> None:
    claim = dataclasses.replace(CLAIM, by="ratio", at_least=None, at_most=0.5)
    found = verdict(claim, measured(1.0, 1.01, 0.99), measured(3.0, 3.03, 2.97))
    assert found.effect == pytest.approx(1 / 3)
    assert found.verdict == "supported"
    assert found.interval is not None
    assert found.interval[0] < 1 / 3 < found.interval[1]
    scaled = verdict(claim, measured(10.0, 10.1, 9.9), measured(30.0, 30.3, 29.7))
    assert scaled.p == pytest.approx(found.p)
    assert verdict(claim, measured(2.0, 2.02, 1.98), measured(3.0, 3.03, 2.97)).verdict == "contradicted"
    assert "not positive" in verdict(claim, measured(1.0, 1.0, 1.0), measured(0.0, 0.0, 0.0)).why


def test_figures_without_spread_decide_by_themselves() -> None:
    claim = dataclasses.replace(CLAIM, by="ratio", at_least=None, at_most=0.76)
    assert verdict(claim, measured(75.0, 75.0, 75.0), measured(100.0, 100.0, 100.0)).verdict == "supported"
    assert verdict(claim, measured(77.0, 77.0, 77.0), measured(100.0, 100.0, 100.0)).verdict == "contradicted"


def test_many_claims_are_corrected_for_by_holm() -> None:
    alone = judge_claim("c", CLAIM, measured(*HIGH), measured(*LOW))
    weak = [
        dataclasses.replace(judge_claim(f"w{i}", CLAIM, measured(70.0, 72.0, 74.0), measured(69.0, 70.0, 71.0)))
        for i in range(3)
    ]
    corrected = with_corrections([alone, *weak])
    assert alone.p is not None
    assert corrected[0].adjusted_p == pytest.approx(4 * alone.p)
    assert [found.name for found in corrected] == ["c", "w0", "w1", "w2"]


def test_untestable_claims_take_no_part_in_the_correction() -> None:
    alone = judge_claim("c", CLAIM, measured(*HIGH), measured(*LOW))
    missing = judge_claim("m", CLAIM, None, None)
    corrected = with_corrections([missing, alone])
    assert corrected[1].adjusted_p == alone.p
    assert corrected[0].verdict == "not compared"
