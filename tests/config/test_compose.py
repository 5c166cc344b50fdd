"""Composition, alone and inside `hydra.main`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from reattend.config import ConfigError, compose, config_dir, loader
from reattend.config.loader import load, reason

APP = """
import sys
import hydra
from reattend.config import compose, config_dir, normalise_overrides, read
from hydra.core.hydra_config import HydraConfig


def job(cfg):
    inner = compose(["attention=sh"])
    again = compose(["attention=sh"])
    assert inner == again
    print(cfg.attention.name, cfg.attention.options.k, inner.attention.name, read(cfg).seed, HydraConfig.get().job.name)


sys.argv[1:] = normalise_overrides(sys.argv[1:])
hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="train")(job)()
"""


def test_calls_are_independent_of_each_other_and_leave_hydra_as_it_was() -> None:
    assert not GlobalHydra.instance().is_initialized()
    first = compose(["attention=bn", "seed=3"])
    assert (first.attention.name, first.seed) == ("bn", 3)
    assert (compose().attention.name, compose().seed) == ("softmax", 0)
    assert isinstance(first, DictConfig)
    assert "hydra" not in first
    assert not GlobalHydra.instance().is_initialized()


def test_published_values_are_the_tasks_and_assumed_where_it_has_none() -> None:
    cfg = compose(["attention=bn_sh", "task=uea/japanese_vowels"])
    assert cfg.scales.value == cfg.task.published.scales.value
    assert cfg.scales.source == cfg.task.published.scales.source
    assert (cfg.beta.value, cfg.beta.source) == (1.0, "assumed")
    assert (cfg.window.value, cfg.window.source) == (None, "assumed")


def test_it_works_inside_a_multirun_with_swept_options(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    arguments = ["-m", "attention=custom", "attention.target=my.MyMixer", "attention.options.k=1,2", "seed=5"]
    run = subprocess.run(
        [sys.executable, "app.py", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.stdout.splitlines() == ["custom 1 sh 5 app", "custom 2 sh 5 app"], run.stderr


def test_wrong_overrides_are_told_as_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"attention has no member 'bnn'\. Did you mean 'bn'\?"):
        compose(["attention=bnn"])
    with pytest.raises(ConfigError, match=r"recipe has no key 'epoch'\. Did you mean 'epochs'\?"):
        compose(["recipe.epoch=1"])
    assert not GlobalHydra.instance().is_initialized()


def test_the_folder_is_the_checkouts() -> None:
    assert config_dir() == Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize(
    "overrides",
    [
        ["seed=3", "attention=bn_sh", "task=uea/heartbeat", "recipe.epochs=5", "scale=quick"],
        ["attention=layers", "+attention.at={-1: bn}", "~attention.layer_losses", "attention.default=sh"],
        ["attention=custom", "attention.target=my.X", "+attention.options.k=1", "++attention.options.j={a: [1, 2]}"],
        ["recipe.epochs=2", "recipe={epochs: 3}", "seed=1", "seed=2"],
        ["data=standin", "search=lr", "outputs=${oc.env:HOME}/x"],
        ["attention=bn_sh", "beta=one", "task=lra/text", "recipe=nystromformer", "backbone=lra_encoder"],
        ["attention=bn", "beta=published", "beta.value=0.3", "fidelity=corrected", "task=lra/listops"],
        ["attention=bn", "attention=sh", "task=lra/text"],
        ["attention=primal", "~attention.options", "recipe=mvts", "task=lra/image", "++recipe.lr=1"],
        ["attention=aft_local", "window=published", "+attention.new={a: 1}", "scale=quick", "trainer=ddp"],
    ],
)
def test_what_was_composed_before_is_what_hydra_gives(overrides: list[str]) -> None:
    with initialize_config_dir(str(config_dir()), job_name="train", version_base="1.3"):
        wanted = hydra_compose("train", overrides)
    for _ in range(2):
        found = load(overrides)
        assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(wanted)
        assert OmegaConf.is_struct(found)
        found.seed = 77  # a caller may change what is its own


def test_a_member_does_not_hide_what_another_file_wrote_into_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(config_dir(), tmp_path / "configs")
    task = copied / "task" / "uea" / "heartbeat.yaml"
    task.write_text(task.read_text() + "\nbeta: {learnable: true}\n")
    monkeypatch.setattr(loader, "config_dir", lambda: copied)
    assert load(["task=uea/heartbeat", "beta=one"]).beta.learnable is True
    assert load(["task=uea/japanese_vowels", "beta=one"]).beta.learnable is False


@pytest.mark.parametrize(
    "overrides",
    [
        ["attention=bnn", "recipe.epoch=2"],
        ["recipe.epoch=1", "+seed=1"],
        ["+nothing.at.all=1", "+nothing.at.all=1"],
        ["~attention.nothing"],
        ["attention@x=bn", "seed=1"],
        ["seed=1,2"],
        ["recipe/optimizer=x"],
    ],
)
def test_what_hydra_refuses_is_refused_with_its_words(overrides: list[str]) -> None:
    hydra = initialize_config_dir(str(config_dir()), job_name="train", version_base="1.3")
    with hydra, pytest.raises(HydraException) as wanted:
        hydra_compose("train", overrides)
    with pytest.raises(ConfigError) as found:
        load(overrides)
    assert str(found.value) == reason(wanted.value)


def test_a_file_edited_between_two_calls_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "beta").mkdir()
    (tmp_path / "beta" / "mine.yaml").write_text("name: mine\nvalue: 0.1\n")
    assert load(["beta=mine"], more=[tmp_path]).beta.value == 0.1
    (tmp_path / "beta" / "mine.yaml").write_text("name: mine\nvalue: 0.25\n")
    assert load(["beta=mine"], more=[tmp_path]).beta.value == 0.25
    (tmp_path / "beta" / "mine.yaml").unlink()
    with pytest.raises(ConfigError, match="beta/mine"):
        load(["beta=mine"], more=[tmp_path])
