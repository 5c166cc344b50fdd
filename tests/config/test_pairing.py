"""Backbones that cannot read a task's data, whatever their options."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf
from torch import nn

from reattend.config import ConfigError, check_run, compose, read
from reattend.config.groups import members
from reattend.config.loader import whole_member
from reattend.config.locate import locate
from reattend.config.pairing import pairing_problems
from reattend.data.facts import data_facts

ENCODERS, IMAGES, DECODERS = (
    ["flowformer_encoder", "uea_encoder"],
    ["deit_base", "deit_small", "deit_tiny", "small_vit"],
    ["ar_decoder", "transformer_lm"],
)
FITTING = {
    "uea/japanese_vowels": ENCODERS,
    "lra/text": ["lra_encoder"],
    "imagenet/deit_tiny": IMAGES,
    "image_ar/cifar10": DECODERS,
    "char_lm/enwik8": DECODERS,
    "word_lm/wikitext103": DECODERS,
}


def message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_run(read(compose(overrides)))
    return str(caught.value)


@pytest.mark.parametrize("task", FITTING)
def test_backbones_that_fit_are_known(task: str) -> None:
    tree = OmegaConf.to_container(compose([f"task={task}"]))
    assert isinstance(tree, dict)
    found = [b for b in members("backbone") if not pairing_problems({**tree, "backbone": whole_member("backbone", b)})]
    assert found == FITTING[task]


@pytest.mark.parametrize(
    ("task", "backbone"),
    [
        ("uea/japanese_vowels", "ar_decoder"),
        ("char_lm/enwik8", "lra_encoder"),  # has options that the task has no sizes for
        ("lra/text", "transformer_lm"),  # whose sizes would be None
        ("image_ar/cifar10", "deit_tiny"),
    ],
)
def test_a_pair_that_cannot_be_is_told_once_with_those_that_fit(task: str, backbone: str) -> None:
    lines = message(f"task={task}", f"backbone={backbone}").splitlines()
    assert lines[0] == "1 mistake in the configuration:"
    assert lines[1].startswith(f"  - backbone={backbone} does not fit task={task}: ")
    assert f"Backbones that fit: {', '.join(FITTING[task])}; without backbone=... the task takes its own." in lines[1]


@pytest.mark.parametrize(
    ("task", "backbone", "reason"),
    [
        ("char_lm/enwik8", "small_vit", "it needs image_size, the data has vocabulary, max_length and num_outputs."),
        ("lra/text", "ar_decoder", "it does not take the data's num_documents."),
        ("image_ar/cifar10", "lra_encoder", "tokens are predicted from those before them, and by its place() it is"),
    ],
)
def test_the_reason_is_told(task: str, backbone: str, reason: str) -> None:
    assert f": {reason}" in message(f"task={task}", f"backbone={backbone}")


def test_a_size_that_the_task_does_not_name_is_asked_for() -> None:
    pair = ("task=imagenet/deit_tiny", "backbone=small_vit")
    told = "backbone=small_vit takes it from the task, and task=imagenet/deit_tiny names none: backbone.options.dim=..."
    assert f"backbone.options.dim: {told}" in message(*pair)
    check_run(read(compose([*pair, "backbone.options.dim=64", "backbone.options.depth=2"])))


@pytest.mark.parametrize("task", FITTING)
def test_data_gives_what_it_says(task: str) -> None:
    run = read(compose([f"task={task}", "data=standin", "scale=quick"]))
    assert set(locate(run.task.data_target).gives) <= set(data_facts(run).shape)


class Wide(nn.Module):
    """A backbone of one's own that is built from whatever the data has."""

    def __init__(self, mixers: Any, **shape: Any) -> None:
        super().__init__()


class Narrow(nn.Module):
    """One that wants what no data has."""

    def __init__(self, mixers: Any, *, atoms: int, **shape: Any) -> None:
        super().__init__()


def test_a_backbone_of_ones_own_is_asked_for_its_signature() -> None:
    own = ("attention=linear", "task=lra/text", "backbone.name=own")
    wide, narrow = (f"backbone.target={__name__}.{name}" for name in ("Wide", "Narrow"))
    told = "backbone=own does not fit task=lra/text: it needs atoms, the data has vocabulary, num_documents, max_length"
    assert told in message(*own, narrow)
    for fitting in ([wide], [narrow, "++backbone.options.atoms=3"]):
        assert "does not fit" not in message(*own, *fitting, "attention.options.no_such=1")
