"""Composition, alone and inside `hydra.main`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from reattend.config import ConfigError, compose, config_dir

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
