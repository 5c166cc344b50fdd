"""Mistakes on a command line: each is found, with the nearest valid name, all in one message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reattend.config import ConfigError, check_overrides
from reattend.errors import ReattendError


def message(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_overrides(["-m", *arguments])
    return str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "attention=bn_sh task=uea/japanese_vowels",
        "-m attention=softmax,bn,sh,bn_sh seed=0,1,2",
        "--multirun attention=choice(softmax,bn) recipe.epochs=range(1,4)",
        "-m attention=glob(linear*) beta.value=0.1,0.3",
        "-m attention=custom attention.target=my.MyMixer attention.options.k=1,2 attention.options.deep.er=x",
        "-m attention=custom attention.target=my.A,my.B",
        "beta=one scales=none window=none",
        "beta.value=0.3 scales.value=[1,2] window.value=32",
        "hydra.verbose=true hydra/launcher=basic",
        "--cfg job seed=3",
        "--info searchpath",
        "search=seeds",
        "scale.epochs=3 recipe.optimizer.betas=[0.9,0.98]",
        "+backbone.options.extra=1",
        "task.published.scales.value=[1,2]",
        "seed=${recipe.epochs}",
    ],
)
def test_a_right_command_line_passes(line: str) -> None:
    check_overrides(line.split())


def test_layers_by_index_pass() -> None:
    check_overrides(["attention=layers", "attention.default=linear", "attention.at={-1: bn, 0: softmax}"])


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("atention=bn", "atention=bn: there is no group or key 'atention'. Did you mean 'attention'?"),
        ("bta.value=1", "bta.value=1: there is no group or key 'bta'. Did you mean 'beta'?"),
        (
            "attention=bnn",
            "attention=bnn: attention has no member 'bnn'. Did you mean 'bn'? Members of attention: aft_conv, ",
        ),
        ("attention=softmax,bnn", "attention=bnn: attention has no member 'bnn'. Did you mean 'bn'?"),
        ("attention=choice(bn,bnn)", "attention=bnn: attention has no member 'bnn'."),
        ("attention=null", "attention=null: attention has no member 'null'."),
        ("task=japanese_vowels", "task has no member 'japanese_vowels'. Did you mean 'uea/japanese_vowels'?"),
        ("seed=0,x", "seed: expected int, found 'x'"),
        ("recipe.optimizer.lr=choice(0.1,slow)", "recipe.optimizer.lr: expected float, found 'slow'"),
        ("search=seedz", "search=seedz: search has no member 'seedz'. Did you mean 'seeds'?"),
        ("beta.vlaue=0.3", "beta.vlaue=0.3: beta has no key 'vlaue'. Did you mean 'value'?"),
        ("recipe.optimizer.lrr=1", "recipe.optimizer.lrr=1: recipe.optimizer has no key 'lrr'. Did you mean 'lr'?"),
        ("backbone.options.dimm=1", "backbone.options.dimm=1: backbone.options has no key 'dimm'. Did you mean 'dim'?"),
        ("task.dims.depht=1,2", "task.dims has no key 'depht'. Did you mean 'depth'?"),
        ("protocol.zzz=1", "protocol has no key 'zzz'. Its keys: name, selection, split_seed, validation_fraction."),
        ("beta.value.deeper=1", "beta.value is a single value, it has no key 'deeper'"),
        ("+foo=1", "+foo=1: there is no group or key 'foo'. There are: attention,"),
        ("++recipe.foo=1", "recipe.foo=1: recipe has no key 'foo'. Its keys:"),
        (
            "scales=quick",
            "scales=quick: scales has no member 'quick'; did you mean scale=quick? Members of scales: none,",
        ),
        (
            "scale=none",
            "scale=none: scale has no member 'none'; did you mean scales=none? Members of scale: paper, quick",
        ),
        ("protocol=corrected", "protocol has no member 'corrected'; did you mean fidelity=corrected?"),
        ("beta=0.3", "beta is a group of learnable, none, one, published; a value is set by beta.value=0.3"),
        ("scales=[1,2]", "a value is set by scales.value=[1,2]"),
        ("seed", "seed: a '=' is missing; an override is seed=value"),
        ("=3", "=3: the key before '=' is missing"),
        ("scales.value=[1,2", "scales.value=[1,2: not in Hydra's override grammar (quoted for the shell?): no viable"),
        ("attention.options.k={a", "- attention.options.k={a: not in Hydra's override grammar"),
        ("recipe.lr=0.1", "recipe.lr=0.1: recipe has no key 'lr'. Did you mean recipe.optimizer.lr?"),
        ("lr=0.1", "lr=0.1: there is no group or key 'lr'. Did you mean recipe.optimizer.lr or task.lr?"),
        ("outputs=", "outputs is empty"),
        ("outputs=''", "outputs is empty"),
        ("data.root=", "data.root is empty"),
        ("attention=", "attention is empty"),
        ("attention.options.k=", "- attention.options.k is empty"),
        (
            "outputs=/tmp/é",
            "outputs=/tmp/é: a value with é is quoted twice, for the shell and for Hydra: 'outputs=\"/tmp/é\"'",
        ),
        ("outputs=/a~b", "'outputs=\"/a~b\"'"),
        ("trainer.threads=100000", "trainer.threads: expected int at most 1024, found 100000"),
        ("recipe.batch_size=2147483649", "recipe.batch_size: expected int at most 2147483648, found 2147483649"),
        ("recipe.epochs=1000000001", "recipe.epochs: expected int at most 1000000000, found 1000000001"),
        ("recipe.epochs=abc", "recipe.epochs: expected int, found 'abc'"),
        ("attention=custom", "attention.target: it needs a value: attention.target=..."),
        ("+attention=bn", "attention"),
        ("recipe=transformer_ls", "recipe=transformer_ls: task=uea/japanese_vowels has no settings for it"),
    ],
)
def test_a_mistake_is_told(override: str, told: str) -> None:
    text = message(override)
    assert text.startswith("1 mistake in the configuration:\n  - ")
    assert told in text
    assert text.endswith("\nGroups and their members: python scripts/list.py")
    assert "hydra.cc" not in text
    assert "Traceback" not in text


def test_all_mistakes_come_in_one_message_in_the_order_of_the_line() -> None:
    lines = message(
        "recipe.optimizer.lrr=1", "attention=bnn", "beta.vlaue=0.3", "atention=bn", "seed", "scales=quick"
    ).splitlines()
    assert lines[0] == "6 mistakes in the configuration:"
    assert [line.split(":")[0].strip(" -") for line in lines[1:-1]] == [
        "recipe.optimizer.lrr=1",
        "attention=bnn",
        "beta.vlaue=0.3",
        "atention=bn",
        "seed",
        "scales=quick",
    ]


def test_every_wrong_choice_of_a_sweep_is_told() -> None:
    text = message("-m", "attention=sofmax,bn,bnn")
    assert text.startswith("2 mistakes ")
    assert "Did you mean 'softmax'?" in text
    assert "Did you mean 'bn'?" in text


def test_types_and_pairs_that_cannot_work_join_a_mistyped_key() -> None:
    text = message("recipe.epoch=3", "recipe.batch_size=x", "attention=bn_sh", "backbone.options.num_heads=7")
    assert text.startswith("3 mistakes in the configuration:")
    assert "recipe has no key 'epoch'. Did you mean 'epochs'?" in text
    assert "recipe.batch_size: expected int, found 'x'" in text
    assert "num_heads=7 does not divide dim=128" in text


def test_a_key_must_exist_for_every_choice_of_a_sweep() -> None:
    check_overrides(["-m", "attention=bn,bn_sh", "attention.options.recenter.beta=1"])
    check_overrides(["-m", "trainer=auto,ddp", "trainer.devices=2"])


def test_keys_of_a_group_whose_member_is_wrong_are_not_judged() -> None:
    assert message("backbone=uea_encodr", "backbone.options.zzz=1").startswith("1 mistake ")


def test_a_folder_of_ones_own_is_searched(tmp_path: Path) -> None:
    (tmp_path / "beta").mkdir()
    (tmp_path / "beta" / "mine.yaml").write_text("name: mine\nvalue: 0.7\nsource: x\nlearnable: false\nstd: false\n")
    check_overrides(["--config-dir", str(tmp_path), "beta=mine"])
    check_overrides([f"hydra.searchpath=[file://{tmp_path}]", "beta=mine"])
    assert "Did you mean 'mine'?" in message("--config-dir", str(tmp_path), "beta=mime")


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("name: [mine\n", "while parsing"),
        ("defaults: [nowhere]\n", "nowhere"),
        ("name: mine\nvalue: ${no.where}\nsource: x\nlearnable: false\nstd: false\n", "beta.value: Interpolation key"),
        ("name: mine\nvalue: x\nlearnable: false\nstd: false\nsources: 1\n", "beta.sources: no such key. Did you mean"),
    ],
)
def test_a_broken_yaml_of_ones_own_is_one_message(tmp_path: Path, yaml: str, told: str) -> None:
    (tmp_path / "beta").mkdir()
    (tmp_path / "beta" / "mine.yaml").write_text(yaml)
    text = message(f"--config-dir={tmp_path}", "beta=mine")
    assert told in text
    assert "Config search path" not in text


def test_neither_importing_nor_checking_imports_torch() -> None:
    code = (
        "import sys, reattend.config as c\n"
        "c.check_overrides(['attention=bn_sh'])\n"
        "c.read(c.compose(['attention=layers']))\n"
        "try: c.check_overrides(['attention=bnn'])\n"
        "except c.ConfigError: pass\n"
        "assert not {'torch', 'pytorch_lightning'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_error_is_one_that_a_person_can_mend() -> None:
    assert issubclass(ConfigError, ReattendError)


def test_a_sweep_without_multirun_is_told_how_to_run_it() -> None:
    with pytest.raises(ConfigError, match=r"attention=softmax,bn: several values are a sweep, which needs -m"):
        check_overrides(["attention=softmax,bn"])
    check_overrides(["-m", "attention=softmax,bn"])


def test_a_sweep_over_values_without_multirun_is_told_too() -> None:
    with pytest.raises(ConfigError) as caught:
        check_overrides(["seed=0,1", "++attention.options.dropout=0.1,0.2"])
    text = str(caught.value)
    assert text.startswith("2 mistakes ")
    assert "- seed=0,1: several values are a sweep, which needs -m; a list is written seed=[...]" in text
    assert "- attention.options.dropout=0.1,0.2: several values" in text


def test_a_required_value_that_is_swept_without_multirun_is_not_called_missing() -> None:
    with pytest.raises(ConfigError, match="several values") as caught:
        check_overrides(["attention=custom", "attention.target=my.A,my.B"])
    assert "it needs a value" not in str(caught.value)


def test_a_quoted_value_passes() -> None:
    check_overrides(['outputs="/tmp/é"'])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-cd", "/nonexistent"], "--config-dir: /nonexistent is not a folder"),
        (["--config-dir=/nonexistent"], "--config-dir: /nonexistent is not a folder"),
        (["-cd"], "-cd: its value is missing"),
        (["--config-name=foo"], "--config-name: there is no foo.yaml in "),
        (["-cn", "foo"], "-cn: there is no foo.yaml in "),
        (["-cn"], "-cn: its value is missing"),
        (["-m", "--cfg", "job"], "--cfg and --multirun: one of them at a time"),
        (["--resolve"], "--resolve: it belongs to --cfg; write --cfg job --resolve"),
    ],
)
def test_a_flag_that_points_nowhere_is_told(arguments: list[str], told: str) -> None:
    text = message(*arguments)
    assert text.startswith("1 mistake in the configuration:\n  - ")
    assert told in text


def test_right_flags_pass(tmp_path: Path) -> None:
    check_overrides(["--cfg", "job", "--resolve"])
    check_overrides(["--config-name=train", "-cd", str(tmp_path), "--info"])
