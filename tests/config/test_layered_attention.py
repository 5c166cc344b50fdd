"""Mechanisms that are composed by layers in a file of their own."""

from __future__ import annotations

import pytest

from reattend.attention import LayeredMixerFactory, MixerSpec, MultiHeadAttention
from reattend.attention.primal import Primal
from reattend.config import ConfigError, RunConfig, build_mixer_factory, check_run, compose, read, to_dict
from reattend.config.read import from_dict


def run_of(*overrides: str) -> RunConfig:
    return read(compose(overrides))


def message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_run(run_of(*overrides))
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "last"),
    [
        (("attention=primal_plus",), 1),
        (("attention=primal_last_k",), 2),
        (("attention=primal_last_k", "attention.last.primal=3"), 3),
    ],
)
def test_primal_is_in_the_last_layers(overrides: tuple[str, ...], last: int) -> None:
    run = run_of(*overrides)
    check_run(run)
    factory = build_mixer_factory(run)
    assert isinstance(factory, LayeredMixerFactory)
    kinds = [type(factory(MixerSpec(16, 8, 9, layer=layer, num_layers=4))) for layer in range(4)]
    assert kinds == [MultiHeadAttention] * (4 - last) + [Primal] * last
    assert from_dict(to_dict(run)) == run


def test_published_values_are_those_of_the_task() -> None:
    primal, plus = run_of("attention=primal").attention, run_of("attention=primal_plus").attention
    assert (primal.options["rank"], primal.options["rank_multi"], primal.loss_weights["ksvd"]) == (40, 5, 0.5)
    part = plus.parts["primal"]
    assert (part.options["rank"], part.options["rank_multi"], plus.loss_weights["ksvd"]) == (30, 5, 0.2)
    other = run_of("attention=primal", "task=uea/basic_motions").attention
    assert (other.options["rank"], other.options["rank_multi"], other.loss_weights["ksvd"]) == (30, 10, 0.1)


def test_fidelity_chooses_the_form() -> None:
    names = ("rows", "loss_tokens", "over_tokens", "multiplier_form", "square")
    published, corrected = (run_of("attention=primal", f"fidelity={name}") for name in ("published", "corrected"))
    assert [published.attention.options[n] for n in names] == ["all", "all", "mean", "square", "sample"]
    assert [corrected.attention.options[n] for n in names] == ["real", "real", "sum", "exponential", "sample"]
    assert published.backbone.options["layer_losses"] == "mean"
    assert corrected.backbone.options["layer_losses"] == "sum"
    assert run_of("fidelity=corrected").backbone.options["layer_losses"] == "mean"


def test_a_part_has_its_options_and_the_layers_its_loss_weights() -> None:
    given = ("attention=layers", "attention.at={-1: primal}", "+attention.part_options={primal: {rank: 7}}")
    attention = run_of(*given).attention
    assert attention.parts["primal"].options["rank"] == 7
    assert attention.loss_weights == {"ksvd": 0.5}
    assert run_of(*given, "+attention.loss_weights.ksvd=2").attention.loss_weights == {"ksvd": 2}


def test_wrong_compositions_are_told() -> None:
    told = message("attention=primal_plus", "+attention.part_options.bn={}")
    assert "attention.part_options.bn: no layer has attention bn" in told
    told = message("attention=primal_plus", "attention.last={primal: 1, bn: 1}")
    assert "attention.last: one attention can have the last layers, not primal and bn" in told
    assert "layer -4 does not exist" in message("attention=primal_plus", "attention.last.primal=4")
    assert "attention.last.primal: expected int at least 1" in message(
        "attention=primal_plus", "attention.last.primal=0"
    )


def test_a_loss_of_the_whole_batch_refuses_accumulation() -> None:
    given = ("attention=primal_plus", "fidelity.primal.square=batch")
    check_run(run_of(*given))
    assert "trainer.accumulation: attention=primal_plus needs the whole batch" in message(
        *given, "trainer.accumulation=2"
    )


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["attention=primal", "attention.loss_weights.ksvd=-1"], "at least 0"),
        (["attention=primal_plus", "attention.options.rank=10"], "attention.part_options.primal.<option>"),
        (["attention=primal_plus", "attention.last={bn: 1}"], "'~attention.last.primal'"),
    ],
)
def test_the_way_out_of_a_mistake_is_told(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(*overrides)
    assert told in str(caught.value)
