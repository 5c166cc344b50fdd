"""Optional keys need no plus, flags are told from overrides, and values can be written as overrides."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from reattend.config import compose, normalise_overrides, split_flags
from reattend.config.overrides import override_text


@pytest.mark.parametrize(
    "override",
    [
        "attention.options.k=1",
        "attention.options.kernel.fused=false",
        "attention.options.k=1,2",
        "attention.at={-1: bn}",
        "attention.default=bn",
        "scale.epochs=3",
        "recipe.optimizer.betas=[0.9,0.99]",
    ],
)
def test_an_optional_key_gets_hydras_plus(override: str) -> None:
    assert normalise_overrides([override]) == [f"++{override}"]
    assert normalise_overrides(normalise_overrides([override])) == [f"++{override}"]


@pytest.mark.parametrize(
    "argument",
    [
        "attention=bn",
        "seed=0,1",
        "beta.value=0.3",
        "backbone.options.dim=3",
        "attention.target=a.B",
        "recipe.optimizer.lrr=1",
        "+attention.options.k=1",
        "~attention.options.k",
        "attention.options",
        "--multirun",
        "-m",
        "hydra.verbose=true",
        "x=attention.options.k=1",
    ],
)
def test_all_else_stays_as_it_is(argument: str) -> None:
    assert normalise_overrides([argument]) == [argument]


def test_the_words_of_the_readme_compose() -> None:
    own = compose(["attention=custom", "attention.target=my.MyMixer", "attention.options.k=v"]).attention
    assert (own.target, own.options.k) == ("my.MyMixer", "v")
    assert compose(["attention=layers", "attention.at={-1: bn}"]).attention["at"] == {-1: "bn"}
    assert compose(["attention=bn", "attention.options.kernel.fused=false"]).attention.options.kernel.fused is False
    assert compose(["scale.epochs=3"]).recipe.epochs == 3


def test_flags_keep_the_values_behind_them() -> None:
    flags, overrides = split_flags(["--cfg", "job", "seed=1", "-m", "attention=bn", "-cd", "mine", "--config-dir=x"])
    assert flags == ["--cfg", "job", "-m", "-cd", "mine", "--config-dir=x"]
    assert overrides == ["seed=1", "attention=bn"]


@pytest.mark.parametrize("value", [None, True, 3, 0.5, "text", "with blank", "quo'te", [1, 2], "a=b"])
def test_an_overrides_text_is_read_back_as_the_value(value: object) -> None:
    (override,) = OverridesParser.create().parse_overrides([override_text("key", value)])
    assert override.value() == value
