"""Binding of plain values to dataclasses and signatures: what is accepted, converted, and what the problems say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reattend.config.binding import UNREADABLE, bind_dataclass, bind_signature, convert, unbind
from reattend.config.limits import Count, Fraction, Limit, NonNegative, NonNegativeInt, Positive


@dataclass(frozen=True)
class Inner:
    lr: Positive
    name: Literal["adam", "sgd"] = "adam"


@dataclass(frozen=True)
class Outer:
    inner: Inner
    epochs: Count
    flag: bool = False
    clip: float | None = None
    scales: list[int] | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    dims: Mapping[str, int] = field(default_factory=dict)
    at: Mapping[int, str] = field(default_factory=dict)
    free: Any = None


class Kernel(TypedDict, total=False):
    name: str
    fused: bool


class Speaks(Protocol):
    def speak(self) -> str: ...


def problems_of(value: Any, hint: Any) -> list[str]:
    problems: list[str] = []
    converted = convert(value, hint, "a.b", problems)
    assert (converted is UNREADABLE) == bool(problems)
    return problems


def test_nested_dataclasses_are_built_and_numbers_converted() -> None:
    problems: list[str] = []
    bound = bind_dataclass(
        Outer,
        {
            "inner": {"lr": 1},
            "epochs": 3,
            "clip": 4,
            "betas": [0, 1],
            "dims": {"dim": 8},
            "at": {-1: "bn"},
            "free": [1],
        },
        "",
        problems,
    )
    assert problems == []
    assert bound == Outer(Inner(1.0), 3, clip=4.0, betas=(0.0, 1.0), dims={"dim": 8}, at={-1: "bn"}, free=[1])
    assert [type(x) for x in (bound.inner.lr, bound.clip, bound.betas, bound.betas[0])] == [float, float, tuple, float]


def test_all_problems_are_found_in_one_pass_with_their_paths() -> None:
    problems: list[str] = []
    bound = bind_dataclass(
        Outer,
        {
            "inner": {"lrr": 1, "name": "adm"},
            "epochs": "abc",
            "flag": 1,
            "scales": [1, "x"],
            "betas": [0.9],
            "at": {"x": "bn"},
            "nothing_like_it": 1,
        },
        "recipe",
        problems,
    )
    assert bound is UNREADABLE
    assert problems == [
        "recipe.nothing_like_it: no such key. Valid names: inner, epochs, flag, clip, scales, betas, dims, at, free.",
        "recipe.inner.lrr: no such key. Did you mean 'lr'?",
        "recipe.inner.lr: missing",
        "recipe.inner.name: 'adm' is not one of adam, sgd. Did you mean 'adam'?",
        "recipe.epochs: expected int, found 'abc'",
        "recipe.flag: expected bool, found 1",
        "recipe.scales[1]: expected int, found 'x'",
        "recipe.betas: expected 2 values, found 1: [0.9]",
        "recipe.at, key 'x': expected int, found 'x'",
    ]


@pytest.mark.parametrize(
    ("value", "hint", "problem"),
    [
        (True, int, "a.b: expected int, found True"),
        (True, float, "a.b: expected float, found True"),
        (1.0, int, "a.b: expected int, found 1.0"),
        (1, str, "a.b: expected str, found 1"),
        (None, int, "a.b: expected int, found None"),
        (float("nan"), float, "a.b: expected a finite number, found nan"),
        (float("inf"), Positive, "a.b: expected a finite number, found inf"),
        (0, Count, "a.b: expected int at least 1, found 0"),
        (0, Positive, "a.b: expected float above 0, found 0"),
        (-1, NonNegativeInt, "a.b: expected int at least 0, found -1"),
        (-0.5, NonNegative, "a.b: expected float at least 0, found -0.5"),
        (1.0, Fraction, "a.b: expected float below 1, found 1.0"),
        (3, Annotated[int, Limit("at most", 2)], "a.b: expected int at most 2, found 3"),
        (1, Literal["1"], "a.b: 1 is not one of 1. Did you mean '1'?"),
        (True, Literal[1, 2], "a.b: True is not one of 1, 2."),
        ("x", list[int], "a.b: expected list of int, found 'x'"),
        ("abc", Sequence[str], "a.b: expected list of str, found 'abc'"),
        ([1], Mapping[str, int], "a.b: expected a mapping, found [1]"),
        (1, Inner, "a.b: expected a mapping {lr: ...}, found 1"),
        ([1.5], int | list[int] | None, "a.b[0]: expected int, found 1.5"),
        (2.5, int | list[int] | None, "a.b: expected int or list of int, found 2.5"),
        ({"name": 3}, str | Kernel, "a.b.name: expected str, found 3"),
        ({"fussed": True}, str | Kernel, "a.b.fussed: no such key. Did you mean 'fused'?"),
        (3, str | Kernel, "a.b: expected str or mapping, found 3"),
        (3, Callable[[int], int], "a.b: expected Callable, found 3"),
    ],
)
def test_a_wrong_value_is_told_with_path_and_expectation(value: Any, hint: Any, problem: str) -> None:
    assert problems_of(value, hint) == [problem]


@pytest.mark.parametrize(
    ("value", "hint", "converted"),
    [
        (1, float, 1.0),
        (None, int | None, None),
        (1, int | float, 1),
        ([1, 2], tuple[int, ...], (1, 2)),
        ((1, 2), list[int], [1, 2]),
        ("data", Path, Path("data")),
        ("data", str | Path, "data"),
        ("softmax", str | Kernel, "softmax"),
        ({"name": "linear"}, str | Kernel, {"name": "linear"}),
        ({"a": 1}, dict, {"a": 1}),
        (Inner(1.0), Inner, Inner(1.0)),
        (len, Callable[[int], int], len),
        (object, Speaks, object),
        ({-1: 2}, dict[int, float], {-1: 2.0}),
    ],
)
def test_a_right_value_is_converted(value: Any, hint: Any, converted: Any) -> None:
    problems: list[str] = []
    result = convert(value, hint, "a", problems)
    assert problems == []
    assert result == converted
    assert type(result) is type(converted)


def test_a_value_that_could_not_be_read_is_not_told_twice() -> None:
    problems: list[str] = []
    assert bind_dataclass(Inner, {"lr": UNREADABLE}, "", problems) is UNREADABLE
    assert problems == []


class Target:
    def __init__(self, spec: int, /, model: object, *, rate: float, k: int = 1, unhinted=None) -> None:
        pass


def open_target(spec: int, *, k: int = 1, **others: Any) -> None:
    pass


def hint_of_another_time(spec: int, *, k: NotImported = 1) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


def test_a_signature_gives_names_types_and_required_arguments() -> None:
    problems: list[str] = []
    assert bind_signature(Target, {"rate": 1, "unhinted": "x"}, "o", problems, positional=2) == {
        "rate": 1.0,
        "unhinted": "x",
    }
    assert problems == []
    assert bind_signature(Target, {"kk": 1, "k": "a"}, "o", problems, positional=1) == {}
    assert problems == [
        "o.kk: Target has no option 'kk'. Did you mean 'k'?",
        "o.model: missing",
        "o.rate: missing",
        "o.k: expected int, found 'a'",
    ]


def test_what_others_will_fill_in_is_not_missed() -> None:
    problems: list[str] = []
    assert bind_signature(Target, {"k": 2}, "o", problems, positional=2, complete=False) == {"k": 2}
    assert problems == []


def test_any_name_is_taken_where_the_signature_takes_any() -> None:
    problems: list[str] = []
    assert bind_signature(open_target, {"k": 2, "z": [1]}, "o", problems, positional=1) == {"k": 2, "z": [1]}
    assert problems == []


def test_names_are_checked_where_hints_cannot_be_evaluated() -> None:
    problems: list[str] = []
    assert bind_signature(hint_of_another_time, {"k": "anything"}, "o", problems, positional=1) == {"k": "anything"}
    bind_signature(hint_of_another_time, {"j": 1}, "o", problems, positional=1)
    assert problems == ["o.j: hint_of_another_time has no option 'j'. Valid names: k."]


finite = st.floats(allow_nan=False, allow_infinity=False)
outers = st.builds(
    Outer,
    inner=st.builds(Inner, lr=st.floats(min_value=1e-9, max_value=1e9), name=st.sampled_from(["adam", "sgd"])),
    epochs=st.integers(min_value=1),
    flag=st.booleans(),
    clip=st.none() | finite,
    scales=st.none() | st.lists(st.integers()),
    betas=st.tuples(finite, finite),
    dims=st.dictionaries(st.text(), st.integers()),
    at=st.dictionaries(st.integers(), st.text()),
    free=st.recursive(st.none() | st.booleans() | st.text(), st.lists, max_leaves=4),
)


@given(outers)
def test_unbinding_and_binding_gives_an_equal_value(value: Outer) -> None:
    problems: list[str] = []
    assert bind_dataclass(Outer, unbind(value), "", problems) == value
    assert problems == []


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["inner", "epochs", "betas", "at", "dims", "scales", "zzz"]), plain))
def test_whatever_yaml_holds_is_bound_or_told(values: dict[str, Any]) -> None:
    problems: list[str] = []
    bound = bind_dataclass(Outer, values, "", problems)
    assert (bound is UNREADABLE) == bool(problems)
