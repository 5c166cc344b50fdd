"""Dotted targets, options against signatures, and pairs that cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from reattend.attention import LayeredMixerFactory, MixerFactory, MixerSpec, MultiHeadAttention
from reattend.config import (
    ConfigError,
    RunConfig,
    build,
    build_mixer_factory,
    check_mixers,
    check_run,
    compose,
    locate,
    read,
)

OWN = ("attention=custom", "attention.target=own_mixer.MyMixer")


def run_of(*overrides: str) -> RunConfig:
    return read(compose(overrides))


def message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_run(run_of(*overrides))
    return str(caught.value)


def test_a_module_in_the_current_folder_is_found(own_folder: Path) -> None:
    assert locate("own_mixer.MyMixer").__name__ == "MyMixer"
    assert locate("own_mixer.MyMixer.forward").__name__ == "forward"
    assert locate("reattend.attention.MultiHeadAttention") is MultiHeadAttention


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("own_mixer.MyMxer", "own_mixer has no 'MyMxer'. Did you mean 'MyMixer'?"),
        ("own_mixr.MyMixer", "there is no module 'own_mixr'; start in the folder that holds it ("),
        ("reattend.attention.multhead.X", "reattend.attention has no 'multhead'. Did you mean 'multihead'?"),
        ("own_broken.X", "importing own_broken failed: SyntaxError"),
        ("own_unmet.X", "importing own_unmet failed: No module named 'a_module_that_nobody_has'"),
        ("MyMixer", "'MyMixer' is no import path; one looks like my_package.my_module.MyMixer"),
        ("own_mixer.", "'own_mixer.' is no import path"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(own_folder: Path, path: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        locate(path)
    assert told in str(caught.value)


def test_build_checks_and_converts_arguments() -> None:
    assert build("fractions.Fraction", 1, 2) == 0.5
    config = build("reattend.config.schema.OptimizerConfig", name="sgd", lr=1, betas=[0, 0.5])
    assert (config.lr, config.betas) == (1.0, (0.0, 0.5))
    with pytest.raises(ConfigError) as caught:
        build("reattend.config.schema.OptimizerConfig", "sgd", lrr=1, eps="x")
    assert str(caught.value).splitlines()[1:4] == [
        "  - reattend.config.schema.OptimizerConfig.lrr: OptimizerConfig has no option 'lrr'. Did you mean 'lr'?",
        "  - reattend.config.schema.OptimizerConfig.lr: missing",
        "  - reattend.config.schema.OptimizerConfig.eps: expected float, found 'x'",
    ]
    with pytest.raises(ConfigError, match="is a int and cannot be called"):
        build("sys.maxsize")


def test_a_factory_has_the_class_and_the_options() -> None:
    factory = build_mixer_factory(run_of("attention=bn", "beta.value=0.3"))
    assert isinstance(factory, MixerFactory)
    mixer = factory(MixerSpec(dim=8, num_heads=2, max_length=4))
    assert isinstance(mixer, MultiHeadAttention)
    assert factory.options["recenter"]["beta"] == 0.3


def test_layers_make_a_layered_factory() -> None:
    factory = build_mixer_factory(run_of("attention=layers", "attention.default=sh", "attention.at={-1: linear}"))
    assert isinstance(factory, LayeredMixerFactory)
    assert factory.default.options["scaled_heads"]["scales"] == [1, 1, 2, 2, 4, 4, 8, 8]
    assert {layer: part.options["kernel"]["name"] for layer, part in factory.at.items()} == {-1: "linear"}


def test_a_mixer_of_ones_own_is_built_from_the_command_line(own_folder: Path) -> None:
    run = run_of(*OWN, "attention.options.k=3", "attention.options.rate=1")
    check_run(run)
    mixer = build_mixer_factory(run)(MixerSpec(dim=8, num_heads=2, max_length=4))
    assert (type(mixer).__name__, mixer.k) == ("MyMixer", 3)


def test_options_are_bound_to_the_signature_of_ones_own_mixer(own_folder: Path) -> None:
    assert message(*OWN, "attention.options.k=a", "attention.options.rat=1").splitlines()[1:-1] == [
        "  - attention.options.rat: MyMixer has no option 'rat'. Did you mean 'rate'?",
        "  - attention.options.k: expected int, found 'a'",
    ]
    with pytest.raises(ConfigError, match=r"attention\.options\.k: expected int"):
        build_mixer_factory(run_of(*OWN, "attention.options.k=a"))


def test_what_is_no_mixer_is_answered_with_the_recipe(own_folder: Path) -> None:
    for name in ("NoMixer", "number"):
        text = message("attention=custom", f"attention.target=own_mixer.{name}")
        assert f"attention.target: own_mixer.{name} is not a subclass of reattend.attention.Mixer. Yours:" in text
        assert "class MyMixer(reattend.attention.Mixer):" in text


def test_a_problem_of_ones_own_mixer_names_those_that_work(own_folder: Path) -> None:
    text = message(*OWN, "attention.options.k=13")
    assert "attention=custom cannot work here: k is thirteen. Attentions that can: " in text
    assert " more (python scripts/list.py attention)." in text


def test_heads_that_do_not_divide_the_width_suit_no_attention() -> None:
    text = message("backbone.options.num_heads=7")
    assert text.startswith("1 mistake ")
    assert "attention=softmax cannot work here: num_heads=7 does not divide dim=128" in text
    assert "No attention can: change the backbone's options." in text


def test_scales_of_the_wrong_length_name_the_attentions_without_scales() -> None:
    text = message("attention=bn_sh", "scales.value=[1,2]")
    assert "2 scales [1, 2] for 8 heads" in text
    named = text.split("Attentions that can: ")[1].split(", and ")[0].split(", ")
    assert len(named) == 5
    assert {"bn", "softmax"} <= set(named)
    assert " more (python scripts/list.py attention)." in text
    assert not {"bn_sh", "sh", "linear_sh"} & set(named)


def test_options_that_spoil_a_mechanism_are_told_as_such() -> None:
    text = message("attention=linear", "attention.options.dropout=0.1")
    assert "attention=linear: dropout=0.1" in text
    assert "With the options of its YAML file it works." in text


def test_an_acausal_attention_is_refused_where_causal_is_needed() -> None:
    spec = MixerSpec(dim=128, num_heads=8, max_length=16, causal=True)
    assert check_mixers(run_of("attention=softmax"), spec) == []
    (problem,) = check_mixers(run_of("attention=bn_sh"), spec)
    assert problem.startswith("attention=bn_sh cannot work here: it is not causal")
    named = problem.split("Attentions that can: ")[1].split(", and ")[0].split(", ")
    assert {"bn", "softmax"} <= set(named)
    assert not {"bn_sh", "linear_bn", "conv1d"} & set(named)


def test_a_layer_that_does_not_exist_is_told() -> None:
    assert "layer 5 does not exist: the backbone has 3 layers" in message("attention=layers", "attention.at={5: bn}")


def test_everything_wrong_comes_in_one_message() -> None:
    text = message(
        "attention=layers",
        "attention.at={5: bn_sh}",
        "scales.value=[1,2]",
        "backbone.options.norm=laier",
        "task.target=reattend.tasks.Clasification",
    )
    assert "backbone.options.norm: 'laier' is not one of batch, layer. Did you mean 'layer'?" in text
    assert "task.target: reattend.tasks has no 'Clasification'. Did you mean 'Classification'?" in text
    for size in ("dim", "num_heads", "depth"):
        assert f"backbone.options.{size}: expected int at least 1, found 0" in message(f"backbone.options.{size}=0")


def test_a_metric_that_the_task_does_not_have_is_told() -> None:
    text = message("task.metric=acuracy")
    assert "task.metric: reattend.tasks.Classification has no metric 'acuracy'. Did you mean 'accuracy'?" in text
    assert "It has: accuracy, loss." in message("task.metric=foo")
    check_run(run_of("task.metric=loss"))


@pytest.mark.parametrize("name", ["dim", "ff_dim"])
def test_a_width_that_no_machine_holds_is_told(name: str) -> None:
    text = message(f"backbone.options.{name}=65544")
    assert f"backbone.options.{name}: expected int at most 65536, found 65544" in text
