"""Every mechanism has its module, its naive twin, a configuration and documentation, and can be built and trained."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from attention_files import CONFIGS, NAMES, factory, mixer_class, options

import reattend.attention
from reattend.attention import MixerSpec, split_losses

PACKAGES = ("kernels", "projections", "feature_maps", "aft")
NOT_MECHANISMS = {
    "contract",
    "factory",
    "lookup",
    "own_mixer",
    "slot_choices",
    "slots",
    "trial",
    "naive",
    "ops",
    *PACKAGES,
}


def modules(package: str) -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(importlib.import_module(package).__path__))


MECHANISMS = [name for name in modules("reattend.attention") if name not in NOT_MECHANISMS]
MECHANISMS += [f"{package}.{name}" for package in PACKAGES for name in modules(f"reattend.attention.{package}")]
MECHANISMS = [name for name in MECHANISMS if name not in ("aft.mixer", "aft.bias")]


def chosen(value: Any) -> set[str]:
    """All strings in `value`: names of the modules that fill slots among them."""
    if isinstance(value, dict):
        return set(value).union(*map(chosen, value.values()))
    return {value} if isinstance(value, str) else set()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_mechanism_has_a_documented_twin(mechanism: str) -> None:
    module = importlib.import_module(f"reattend.attention.{mechanism}")
    twin = importlib.import_module(f"reattend.attention.naive.{mechanism}")
    assert module.__doc__
    assert twin.__doc__
    for defined in vars(module).values():
        if inspect.isclass(defined) and defined.__module__ == module.__name__:
            assert defined.__doc__, f"{defined.__name__} has no docstring"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_configuration_names_the_mechanism(mechanism: str) -> None:
    # The linear projection is what an attention has that names none.
    named = {"linear"} if mechanism == "projections.linear" else set()
    for name in NAMES:
        target, values = options(name)
        named |= chosen(values) | {mixer_class(target).__module__.rpartition(".")[2]}
    assert mechanism.rpartition(".")[2] in named


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_builds_and_every_parameter_gets_a_gradient(name: str) -> None:
    spec = MixerSpec(dim=8, num_heads=2, max_length=9, grid=(3, 3))
    assert factory(name).problems(spec) == []
    mixer = factory(name)(spec)
    y, losses = split_losses(mixer(torch.randn(2, 9, 8)))
    assert y.shape == (2, 9, 8)
    (y.square().sum() + sum(loss.sum() for loss in losses.values())).backward()
    for parameter_name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    assert mixer.flops(9) > 0


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_configuration_says_what_it_is(path: Path) -> None:
    config = yaml.safe_load(path.read_text())
    assert config["name"] == path.stem
    assert config["summary"]
    assert config["source"]
    assert not {"fused", "feature_map"} & set(config), "options go under options"


def test_the_naive_twins_share_no_code_with_the_mechanisms() -> None:
    """They import classes, to name the types of their arguments, and call no function of a mechanism."""
    for path in (Path(reattend.attention.__file__).parent / "naive").rglob("*.py"):
        for line in path.read_text().splitlines():
            if line.startswith("from reattend") and ".naive." not in line:
                _, _, _, names = line.split(maxsplit=3)
                assert all(name.strip()[0].isupper() for name in names.split(",")), path
