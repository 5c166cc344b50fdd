"""Does a claim of the paper hold? Welch's test against the claim's own bounds, Holm over the table's claims."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from statsmodels.stats.multitest import multipletests

from reattend.tables.evidence import ClaimEvidence, Measured
from reattend.tables.table import Claim, Place
from reattend.tables.welch import LEAST_SEEDS, LEVEL, Effect, Sample


def judge_claim(
    name: str,
    claim: Claim,
    left: Measured | None,
    right: Measured | None,
    lacking: Mapping[Place, str] | None = None,
    why_not: str = "",
) -> ClaimEvidence:
    """Tests one claim, without the correction for others.

    The effect is the difference of the two means, tested by Welch's t, or their ratio, by Welch's t on the logarithms
    of the means, whose standard errors are std / (mean sqrt(n)) to first order. Where both sides share runs (two values
    of one run) it is the mean over their common seeds of the difference, or of the log ratio, tested by the paired t.
    With one bound the two one-sided tests are against each other; with two the claim is one of equivalence: p is the
    larger of the two one-sided ones, and p_against, that the effect is beyond one of the bounds, twice the smaller one.

    Args:
        name: of the claim.
        claim: one that is unconfirmed is not tested.
        left: the numbers of its left place.
        right: those of its right place.
        lacking: why a place has none, where that is more than that no run is finished.
        why_not: why it cannot be tested although both sides have numbers.
    """
    nothing = ClaimEvidence(name, claim, left, right, None, None, None, None, None, None, "not compared")
    for place, measured in ((claim.left, left), (claim.right, right)):
        if measured is None:
            reason = (lacking or {}).get(place, "no finished run")
            told = f"no finished run of {place.row} on {place.column}"
            return dataclasses.replace(
                nothing, why=told if reason == "no finished run" else f"{place.row} on {place.column}: {reason}"
            )
    assert left is not None
    assert right is not None
    problem = _not_positive(claim, left, right)
    if problem:
        return dataclasses.replace(nothing, why=problem)
    effect = _effect(claim, left, right)
    shown = math.exp if claim.by == "ratio" else float
    known = dataclasses.replace(nothing, effect=shown(effect.value))
    reason = "the claim is unconfirmed" if claim.certainty == "unconfirmed" else why_not
    reason = reason or _too_few(claim, left, right)
    if reason:
        return dataclasses.replace(known, why=reason)
    low, high = _bounds(claim)
    finite = [bound for bound in (low, high) if math.isfinite(bound)]
    ends = effect.interval()
    return dataclasses.replace(
        known,
        interval=(shown(ends[0]), shown(ends[1])),
        p=max(effect.p(low, "greater"), effect.p(high, "less")),
        p_against=min(1.0, len(finite) * min(effect.p(low, "less"), effect.p(high, "greater"))),
        verdict="undecided",
    )


def with_corrections(tested: Sequence[ClaimEvidence]) -> tuple[ClaimEvidence, ...]:
    """The claims with p values after Holm's correction over all of them, verdicts at 5 %, and seeds to be added.

    These are counted at the level that Holm's procedure has for the next claim to be decided: 5 % divided by the number
    of claims that it has not rejected yet.
    """
    testable = [evidence for evidence in tested if evidence.p is not None]
    if not testable:
        return tuple(tested)
    adjusted = _holm([evidence.p for evidence in testable])
    against = _holm([evidence.p_against for evidence in testable])
    levels = _level(adjusted), _level(against)
    corrected = {
        evidence.name: _decided(evidence, p, other, *levels)
        for evidence, p, other in zip(testable, adjusted, against, strict=True)
    }
    return tuple(corrected.get(evidence.name, evidence) for evidence in tested)


def _decided(evidence: ClaimEvidence, p: float, against: float, level: float, level_against: float) -> ClaimEvidence:
    evidence = dataclasses.replace(evidence, adjusted_p=p, adjusted_p_against=against)
    if p < LEVEL or against < LEVEL:
        return dataclasses.replace(evidence, verdict="supported" if p < LEVEL else "contradicted")
    assert evidence.left is not None
    assert evidence.right is not None
    effect, (low, high) = _effect(evidence.claim, evidence.left, evidence.right), _bounds(evidence.claim)
    if effect.error == 0.0:
        return dataclasses.replace(evidence, why="all seeds agree, and the effect is the claim's bound")
    if low < effect.value < high:
        power = partial(Effect.power_inside, low=low, high=high, level=level)
    else:
        sides = math.isfinite(low) + math.isfinite(high)
        power = partial(Effect.power_outside, low=low, high=high, level=level_against / sides)
    return dataclasses.replace(evidence, more_seeds=effect.more_seeds(power))


def _level(adjusted: Sequence[float]) -> float:
    """Of the next claim to be rejected by Holm's procedure."""
    return LEVEL / max(1, sum(p >= LEVEL for p in adjusted))


def _holm(values: Sequence[float | None]) -> list[float]:
    return [float(p) for p in multipletests(values, alpha=LEVEL, method="holm")[1]]


def _bounds(claim: Claim) -> tuple[float, float]:
    """On the scale of the test; infinite where there is none."""
    scale = math.log if claim.by == "ratio" else float
    low = -math.inf if claim.at_least is None else scale(claim.at_least)
    return low, math.inf if claim.at_most is None else scale(claim.at_most)


def _common_seeds(left: Measured, right: Measured) -> list[int] | None:
    """Seeds at which the sides are pairs; None where they share no run."""
    runs = [{found.result.fingerprint for found in side.runs} for side in (left, right)]
    return sorted(left.by_seed.keys() & right.by_seed.keys()) if runs[0] & runs[1] else None


def _effect(claim: Claim, left: Measured, right: Measured) -> Effect:
    seeds = _common_seeds(left, right)
    if seeds is not None:
        pairs = [(left.by_seed[seed], right.by_seed[seed]) for seed in seeds]
        numbers = [math.log(one / other) if claim.by == "ratio" else one - other for one, other in pairs]
        spread = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
        return Effect(statistics.mean(numbers), (Sample(statistics.mean(numbers), spread, len(numbers)),))
    first, second = left.sample, right.sample
    if claim.by == "ratio":
        first, second = first.log(), second.log()
    return Effect(first.mean - second.mean, (first, second))


def _not_positive(claim: Claim, left: Measured, right: Measured) -> str:
    for place, measured in ((claim.left, left), (claim.right, right)):
        if claim.by == "ratio" and min(measured.numbers) <= 0:
            return f"{place.row} on {place.column} is not positive, so there is no ratio"
    return ""


def _too_few(claim: Claim, left: Measured, right: Measured) -> str:
    for place, measured in ((claim.left, left), (claim.right, right)):
        if len(measured.by_seed) < LEAST_SEEDS:
            return f"{place.row} on {place.column} has {len(measured.by_seed)} of at least {LEAST_SEEDS} seeds"
    seeds = _common_seeds(left, right)
    if seeds is not None and len(seeds) < LEAST_SEEDS:
        return f"both sides have {len(seeds)} of at least {LEAST_SEEDS} seeds in common"
    return ""
