"""Every mechanism keeps the contract at every kind of place: all conformance checks, found by walking."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from attention_files import NAMES, factory

from reattend.attention import MixerSpec
from reattend.conformance import Check, Subject, all_checks

PLACES = {
    "sequence": MixerSpec(dim=8, num_heads=2, max_length=11),
    "causal": MixerSpec(dim=8, num_heads=2, max_length=11, causal=True),
    "grid": MixerSpec(dim=12, num_heads=3, max_length=13, grid=(3, 4), prefix_tokens=1),
}
COMPILATION = "compilation.whole"  # About a second each.


@cache
def subject(name: str, place: str) -> Subject:
    spec = PLACES[place]
    return Subject(factory(name, spec.num_heads), spec, batch_size=2)


@cache
def fitting(name: str) -> list[str]:
    try:
        return [place for place, spec in PLACES.items() if not factory(name, spec.num_heads).problems(spec)]
    except Exception:  # One that is broken fails its own tests, and does not keep the others from being collected.
        return list(PLACES)


def parts(name: str) -> set[type]:
    try:
        return set(map(type, subject(name, fitting(name)[0]).mixer().modules()))
    except Exception:
        return set()


def compiled_first() -> list[str]:
    """Mechanisms that together have every part that there is, those of few parts first."""
    by_name = {name: parts(name) for name in NAMES}
    found: list[str] = []
    seen: set[type] = set()
    for name in sorted(NAMES, key=lambda name: len(by_name[name])):
        if not by_name[name] <= seen:
            found.append(name)
            seen |= by_name[name]
    return found


def cases() -> list[Any]:
    found = []
    quick = compiled_first()
    for name, check in itertools.product(NAMES, all_checks()):
        for place in fitting(name)[: 1 if check.once else None]:
            is_slow = check.costly or (check.name == COMPILATION and (name not in quick or place != fitting(name)[0]))
            # Time is measured by scripts/measure.py: here it would depend on what else the machine does.
            if check.name != "scaling.seconds":
                marks = [pytest.mark.slow] if is_slow else []
                found.append(pytest.param(name, place, check, marks=marks, id=f"{name}-{place}-{check.name}"))
    return found


@pytest.mark.parametrize(("name", "place", "check"), cases())
def test_the_contract_is_kept(name: str, place: str, check: Check) -> None:
    result = check(subject(name, place))
    told = f"{result.title}\nexpected {result.expected}\nseen {result.seen}\nlook at {result.look_at}"
    assert result.status != "failed", told


@pytest.mark.parametrize("name", NAMES)
def test_stated_operations_are_those_of_wider_tokens_too(name: str) -> None:
    (check,) = (check for check in all_checks() if check.name == "cost.flops")
    spec = replace(PLACES[fitting(name)[0]], dim=96)
    result = check(Subject(factory(name, spec.num_heads), spec, batch_size=1))
    assert result.status == "passed", f"{result.note}{result.seen}, {result.expected}"


@pytest.mark.parametrize("name", NAMES)
def test_a_mechanism_fits_some_place_and_is_causal_where_it_says_so(name: str) -> None:
    assert fitting(name)
    assert ("causal" in fitting(name)) == factory(name).capabilities.causal
