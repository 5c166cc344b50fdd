"""Does a claim of the paper hold? Welch's test against the claim's own bounds, Holm over the table's claims."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

from reattend.tables.evidence import ClaimEvidence, Measured
from reattend.tables.table import Claim
from reattend.tables.verdicts import LEAST_SEEDS, LEVEL, POWER, seeds_needed

_CONFIDENCE = 0.95


def judge_claim(name: str, claim: Claim, left: Measured | None, right: Measured | None) -> ClaimEvidence:
    """Tests one claim, without the correction for others.

    The effect is the difference of the two means, tested by Welch's t, or their ratio, by Welch's t on the logarithms
    of the means, whose standard errors are std / (mean sqrt(n)) to first order. With one bound the two one-sided tests
    are against each other; with two the claim is one of equivalence: p is the larger of the two one-sided ones, and
    p_against, that the effect is beyond one of the bounds, twice the smaller one.
    """
    nothing = ClaimEvidence(name, claim, left, right, None, None, None, None, None, None, "not compared")
    reason = _not_testable(claim, left, right)
    if left is None or right is None or reason.startswith("no finished run"):
        return dataclasses.replace(nothing, why=reason)
    effect = _ratio(left, right) if claim.by == "ratio" else left.mean - right.mean
    if reason or effect is None:
        return dataclasses.replace(nothing, effect=effect, why=reason)
    scale = math.log if claim.by == "ratio" else float
    low, high = (None if bound is None else scale(bound) for bound in (claim.at_least, claim.at_most))
    first, second = _moments(left, claim.by), _moments(right, claim.by)
    supports = [_p(first, second, low, "greater")] if low is not None else []
    supports += [_p(first, second, high, "less")] if high is not None else []
    againsts = [_p(first, second, low, "less")] if low is not None else []
    againsts += [_p(first, second, high, "greater")] if high is not None else []
    error, freedom = _error(first, second)
    half = float(stats.t.ppf((1 + _CONFIDENCE) / 2, freedom) * error)
    centre = scale(effect)
    ends = (centre - half, centre + half)
    distance = min(abs(centre - bound) for bound in (low, high) if bound is not None)
    return dataclasses.replace(
        nothing,
        effect=effect,
        interval=(math.exp(ends[0]), math.exp(ends[1])) if claim.by == "ratio" else ends,
        p=max(supports),
        p_against=min(1.0, len(againsts) * min(againsts)),
        verdict="undecided",
        more_seeds=_more_seeds(left, right, first, second, distance),
    )


def with_corrections(tested: Sequence[ClaimEvidence]) -> tuple[ClaimEvidence, ...]:
    """The claims with p values after Holm's correction over all of them, and verdicts at 5 %."""
    testable = [evidence for evidence in tested if evidence.p is not None]
    if not testable:
        return tuple(tested)
    adjusted = [_holm([evidence.p for evidence in testable]), _holm([evidence.p_against for evidence in testable])]
    corrected = {
        evidence.name: _decided(evidence, p, against) for evidence, p, against in zip(testable, *adjusted, strict=True)
    }
    return tuple(corrected.get(evidence.name, evidence) for evidence in tested)


def _decided(evidence: ClaimEvidence, p: float, against: float) -> ClaimEvidence:
    decided = dataclasses.replace(evidence, adjusted_p=p, adjusted_p_against=against)
    if p < LEVEL:
        return dataclasses.replace(decided, verdict="supported", more_seeds=None)
    if against < LEVEL:
        return dataclasses.replace(decided, verdict="contradicted", more_seeds=None)
    return decided


def _holm(values: Sequence[float | None]) -> list[float]:
    return [float(p) for p in multipletests(values, alpha=LEVEL, method="holm")[1]]


def _not_testable(claim: Claim, left: Measured | None, right: Measured | None) -> str:
    for place, measured in ((claim.left, left), (claim.right, right)):
        if measured is None:
            return f"no finished run of {place.row} on {place.column}"
        if len(measured.by_seed) < LEAST_SEEDS:
            return f"{place.row} on {place.column} has {len(measured.by_seed)} of at least {LEAST_SEEDS} seeds"
        if claim.by == "ratio" and measured.mean <= 0:
            return f"{place.row} on {place.column} is not positive, so there is no ratio"
    return ""


def _ratio(left: Measured, right: Measured) -> float | None:
    return left.mean / right.mean if right.mean else None


_Moments = tuple[float, float, int]  # mean, standard deviation, count


def _moments(measured: Measured, by: Literal["difference", "ratio"]) -> _Moments:
    std = measured.std or 0.0
    if by == "ratio":
        return math.log(measured.mean), std / measured.mean, len(measured.by_seed)
    return measured.mean, std, len(measured.by_seed)


def _p(left: _Moments, right: _Moments, bound: float, alternative: Literal["greater", "less"]) -> float:
    """Of the one-sided test whose alternative is that the effect lies on that side of the bound."""
    if left[1] == right[1] == 0.0:  # all seeds agree on both sides: the effect is known
        effect = left[0] - right[0]
        return 0.0 if (effect > bound if alternative == "greater" else effect < bound) else 1.0
    mean = left[0] - bound
    found = stats.ttest_ind_from_stats(mean, *left[1:], *right, equal_var=False, alternative=alternative)
    return float(found.pvalue)


def _error(left: _Moments, right: _Moments) -> tuple[float, float]:
    """Standard error of the difference of means, with its degrees of freedom (Welch-Satterthwaite)."""
    parts = np.array([left[1] ** 2 / left[2], right[1] ** 2 / right[2]])
    if parts.sum() == 0.0:
        return 0.0, float(left[2] + right[2] - 2)
    freedom = parts.sum() ** 2 / (parts**2 / (np.array([left[2], right[2]]) - 1)).sum()
    return float(np.sqrt(parts.sum())), float(freedom)


def _more_seeds(left: Measured, right: Measured, first: _Moments, second: _Moments, distance: float) -> int | None:
    count = min(len(left.by_seed), len(right.by_seed))

    def distance_at(seeds: int) -> float:
        error, freedom = _error((*first[:2], seeds), (*second[:2], seeds))
        return float((stats.t.ppf(1 - LEVEL, freedom) + stats.t.ppf(POWER, freedom)) * error)

    needed = seeds_needed(distance_at, distance, count)
    return None if needed is None else needed - count
