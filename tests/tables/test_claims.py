"""Claims against the paper's own margin."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from reattend.tables.claims import judge_claim, with_corrections
from reattend.tables.evidence import ClaimEvidence, Measured
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


def verdict(claim: Claim, left: Measured | None, right: Measured | None) -> ClaimEvidence:
    return with_corrections([judge_claim("c", claim, left, right)])[0]


def test_a_difference_is_tested_by_welch_against_the_claims_own_margin() -> None:
    found = judge_claim("c", CLAIM, measured(*HIGH), measured(*LOW))
    expected = stats.ttest_ind(np.array(HIGH) - 1.0, LOW, equal_var=False, alternative="greater")
    assert found.p == pytest.approx(expected.pvalue)
    interval = stats.ttest_ind(HIGH, LOW, equal_var=False).confidence_interval(0.95)
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
