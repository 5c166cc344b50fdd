"""Every configuration with recentring takes a learnable beta and the standard deviation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf

CONFIGS = Path(__file__).parents[2] / "configs" / "attention"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if "${beta." in path.read_text())


def options(name: str, **beta: Any) -> dict[str, Any]:
    """Options of a configuration, with `beta` for that group and plain values for others."""
    others = {"beta": beta, "scales": {"value": [1, 2]}, "window": {"value": 4}, "recipe": {"attention_dropout": 0.0}}
    config = OmegaConf.create({**others, "attention": yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())})
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    assert resolved["attention"]["target"] == "reattend.attention.MultiHeadAttention"
    return resolved["attention"]["options"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("learnable", "std"), [(False, False), (True, False), (False, True), (True, True)])
def test_outputs_and_gradients_are_the_twins(
    build: Any, errors_to_twin: Any, name: str, learnable: bool, std: bool
) -> None:
    mixer = build(options(name, value=0.4, learnable=learnable, std=std), length=12, grid=(3, 4))
    learned = {name for name, _ in mixer.named_parameters() if name.startswith("recenter.")}
    assert learned == mixer.no_weight_decay() == ({"recenter.beta"} if learnable else set())
    x, real = torch.randn(2, 12, 8, dtype=torch.float64), torch.rand(2, 12) < 0.8
    forward, backward = errors_to_twin(mixer, x, real)
    assert forward < 1e-9
    assert backward < 1e-8


@pytest.mark.parametrize("name", NAMES)
def test_a_learnable_beta_moves_and_a_beta_of_zero_is_none(build: Any, name: str) -> None:
    place = {"length": 12, "grid": (3, 4)}
    mixer = build(options(name, value=0.0, learnable=True, std=False), **place)
    without = build(options(name, value=0.0, learnable=False, std=False), **place)
    assert without.recenter is None
    without.load_state_dict(mixer.state_dict(), strict=False)
    with torch.no_grad():
        mixer.recenter.beta.zero_()
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    y = mixer(x)
    assert torch.allclose(y, without(x), atol=1e-10)
    y.square().sum().backward()
    assert mixer.recenter.beta.grad.shape == (2,)
    assert mixer.recenter.beta.grad.abs().min() > 0
