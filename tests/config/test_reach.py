"""Settings that nothing reads are refused, unless another choice of the sweep reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reattend.config import ConfigError, check_overrides, check_reach
from reattend.config.reach import overrides_read


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            ["attention=softmax", "window.value=8"],
            "window.value=8: nothing reads it with attention=softmax. Attentions",
        ),
        (
            ["attention=sh", "beta.std=true"],
            "beta.std=true: nothing reads it with attention=sh. Attentions that do: bn,",
        ),
        (["attention=linear", "beta=learnable"], "beta=learnable: nothing reads it with attention=linear."),
        (["attention=bn", "scales.value=[1,2]"], "that do: bn_sh, conv1d_bn_sh,"),
        (["-m", "attention=softmax,relu", "beta.value=0.1,0.3"], "nothing reads it with attention=softmax, attention="),
        (["-m", "attention=softmax", "search=beta"], "beta.value=0.1,0.3,0.5,0.8,1.0: nothing reads it"),
        (
            ["attention=bn", "attention.options.recenter.beta=0.3", "beta.value=0.5"],
            "nothing reads it with attention=bn. An override of attention.options has taken its place.",
        ),
        (["scale.dim=64"], "recipe=mvts. Did you mean backbone.options.dim?"),
        (["scale=quick", "scale.batch_size=4"], "Did you mean recipe.batch_size?"),
        (
            ["task=char_lm/enwik8", "scale.image_size=8"],
            "recipe=aft. Read are scale.attention_dropout, scale.batch_size, ",
        ),
        (
            ["task=char_lm/file", "backbone=deit_tiny", "scale.dim=32"],
            "backbone=deit_tiny does not fit task=char_lm/file",
        ),
        (["attention=layers", "attention.default=softmax", "window.value=8"], "with attention=layers."),
    ],
)
def test_what_nothing_reads_is_told_with_what_does(line: list[str], told: str) -> None:
    check_overrides(line)
    with pytest.raises(ConfigError) as caught:
        check_reach(line)
    assert str(caught.value).startswith("1 mistake in the configuration:")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        ["attention=sparse", "window.value=8"],
        ["attention=softmax", "beta=none", "scales=none", "window=published", "window.value=null", "beta.std=false"],
        ["attention=softmax", "attention.options.kernel.window='${window}'", "window.value=3"],
        ["-m", "attention=layers", "+attention.last.bn=range(1,3)", "beta.value=0.2"],
        ["-m", "attention=softmax,bn", "beta.value=0.1,0.3"],
        ["-m", "attention=softmax,linear_bn", "beta=one,learnable"],
        ["-m", "attention=bn", "search=beta"],
        ["attention=layers", "+attention.last.bn=1", "beta.value=0.2"],
        ["attention=softmax", "attention.options.kernel.window='${window.value}'", "window.value=3"],
        ["task=char_lm/enwik8", "scale.dim=64", "scale.depth=1", "scale.max_length=64", "scale.warmup_steps=3"],
        ["task=image/fashion_mnist", "scale=quick", "scale.image_size=8", "scale.warmup_epochs=0"],
        ["scale.epochs=3", "scale.attention_dropout=0.2"],
    ],
)
def test_what_is_read_passes(line: list[str]) -> None:
    check_reach(line)


def test_a_command_is_written_without_what_its_run_does_not_read() -> None:
    shared = ["task=uea/japanese_vowels", "beta.value=0.3", "scale.epochs=4", "scale.dim=8"]
    assert overrides_read(["attention=softmax", *shared]) == [
        "attention=softmax",
        "task=uea/japanese_vowels",
        "scale.epochs=4",
    ]
    assert overrides_read(["attention=bn", *shared, "seed=1"]) == ["attention=bn", *shared[:-1], "seed=1"]


def test_what_a_search_found_is_not_asked_for(tmp_path: Path) -> None:
    best = tmp_path / "best.yaml"
    best.write_text("overrides: [attention=softmax, beta.value=0.3]\n")
    check_reach([f"best={best}", "scale=quick"])
    check_reach([f"best={best}", "attention=bn", "beta.value=0.5"])
    with pytest.raises(ConfigError, match=r"window.value=8: nothing reads it with attention=softmax"):
        check_reach([f"best={best}", "window.value=8"])


def test_layers_that_cannot_be_read_stop_nothing() -> None:
    overrides = ["attention=layers", "attention.last=5", "window.value=4"]
    assert overrides_read(overrides) == overrides[:-1]


def test_a_command_that_cannot_be_composed_is_written_as_it_is() -> None:
    overrides = ["attention=no_such", "beta.value=0.3"]
    assert overrides_read(overrides) == overrides
