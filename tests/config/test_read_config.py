"""From a composed configuration to its typed form and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from reattend.config import ConfigError, RunConfig, compose, from_dict, from_file, read, to_dict


def message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(compose(overrides))
    return str(caught.value)


def test_values_are_resolved_and_typed() -> None:
    run = read(compose(["attention=bn_sh", "beta.value=1", "recipe.optimizer.lr=1"]))
    assert isinstance(run, RunConfig)
    assert run.attention.options["recenter"]["beta"] == 1.0
    assert run.attention.options["scaled_heads"]["scales"] == run.scales.value == [1, 1, 2, 2, 4, 4, 8, 8]
    assert (run.recipe.optimizer.lr, run.recipe.optimizer.betas) == (1.0, (0.9, 0.999))
    assert isinstance(run.recipe.optimizer.lr, float)
    assert run.backbone.options["num_heads"] == run.task.dims["num_heads"] == 8


def test_quick_shortens_the_recipe() -> None:
    paper, quick = read(compose([])), read(compose(["scale=quick"]))
    assert (paper.recipe.epochs, quick.recipe.epochs) == (400, quick.task.quick["epochs"])
    assert (paper.attention.options["dropout"], quick.attention.options["dropout"]) == (0.1, 0.0)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["attention=bn_sh", "beta=learnable"],
        ["attention=layers", "attention.at={-1: bn_sh, 0: linear}"],
        ["attention=custom", "attention.target=my.MyMixer", "attention.options.k=[1,{a: null}]"],
        ["scale=quick", "protocol=strict", "fidelity=corrected", "trainer=cpu", "logger=wandb"],
    ],
)
def test_a_saved_configuration_is_read_back_equal(overrides: list[str], tmp_path: Path) -> None:
    run = read(compose(overrides))
    assert from_dict(to_dict(run)) == run
    OmegaConf.save(OmegaConf.create(to_dict(run)), tmp_path / "config.yaml")
    assert from_file(tmp_path / "config.yaml") == run
    assert from_dict(json.loads(json.dumps(to_dict(run)))) == run


def test_layers_hold_their_parts_as_everything_else_stands() -> None:
    attention = read(compose(["attention=layers", "attention.at={-1: bn, 0: sh}", "beta.value=0.3"])).attention
    assert (attention.default, attention.at) == ("softmax", {-1: "bn", 0: "sh"})
    assert set(attention.parts) == {"softmax", "bn", "sh"}
    assert attention.parts["bn"].options["recenter"]["beta"] == 0.3
    assert attention.parts["softmax"] == read(compose(["attention=softmax"])).attention


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["attention.at={0: bnn}"], "attention.at[0]: no attention 'bnn' for a layer. Did you mean 'bn'?"),
        (["attention.default=sofmax"], "attention.default: no attention 'sofmax' for a layer. Did you mean 'softmax'?"),
        (["attention.at={0: layers}"], "attention.at[0]: no attention 'layers' for a layer."),
        (["attention.at={x: bn}"], "attention.at, key 'x': expected int, found 'x'"),
        (["attention.at=bn"], "attention.at: expected a mapping, found 'bn'"),
        (["attention.options.dropout=0.1"], "attention.options: attention=layers has none of its own"),
    ],
)
def test_wrong_layers_are_told(overrides: list[str], told: str) -> None:
    text = message("attention=layers", *overrides)
    assert text.startswith("1 mistake ")
    assert told in text


def test_only_layers_has_layers() -> None:
    assert "attention.at: only attention=layers has it, this is attention=bn" in message(
        "attention=bn", "attention.at={0: sh}"
    )


def test_all_mistakes_come_in_one_message() -> None:
    text = message(
        "seed=-1",
        "recipe.batch_size=0",
        "recipe.dropout=1",
        "recipe.optimizer.name=rdam",
        "recipe.optimizer.lr=${task.nothing}",
        "trainer.devices=1.5",
        "beta.learnable=1",
        "attention=bn",
        "attention.options.dropuot=0.1",
        "backbone.options.num_heads=7",
    )
    assert text.splitlines()[1:-1] == [
        "  - recipe.optimizer.lr: Interpolation key 'task.nothing' not found",
        "  - seed: expected int at least 0, found -1",
        "  - beta.learnable: expected bool, found 1",
        "  - recipe.optimizer.name: 'rdam' is not one of radam, adam, adamw, sgd. Did you mean 'radam'?",
        "  - recipe.batch_size: expected int at least 1, found 0",
        "  - recipe.dropout: expected float below 1, found 1",
        "  - trainer.devices: expected int, found 1.5",
        "  - attention.options.dropuot: MultiHeadAttention has no option 'dropuot'. Did you mean 'dropout'?",
    ]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["trainer.devices=3"], "recipe.batch_size: 64 is not divisible by 3 = trainer.devices x accumulation"),
        (["trainer=cpu", "trainer.strategy=fsdp"], "trainer.strategy: fsdp needs trainer.accelerator=gpu"),
        (["trainer=cpu", "trainer.precision=16-mixed"], "trainer.precision: 16-mixed needs trainer.accelerator=gpu"),
        (["backbone.pretrained.leave=[querry]"], "'querry' is not one of query, key, value, output, positions, class"),
        (["recipe.augmentation.crop_scale=[1,0.1]"], "the least share comes first: [0.1,1.0], not [1.0,0.1]"),
    ],
)
def test_settings_that_exclude_each_other_are_told(overrides: list[str], told: str) -> None:
    assert told in message(*overrides)


def test_a_file_that_is_no_configuration_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read as a configuration"):
        from_file(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="it holds no mapping"):
        from_file(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match="cannot be read as a configuration"):
        from_file(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("seeds: 1\n")
    with pytest.raises(ConfigError, match=r"seeds: no such key\. Did you mean 'seed'\?"):
        from_file(tmp_path / "config.yaml")
