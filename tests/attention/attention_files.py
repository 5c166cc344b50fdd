"""The configurations of mechanisms, found by walking `configs/attention`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from reattend.attention import Mixer, MixerFactory

CONFIGS = Path(__file__).parents[2] / "configs" / "attention"
COMPOSED = ("layers", "primal_plus", "primal_last_k", "custom")  # Made of the others, or the user's.
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem not in COMPOSED)


def options(name: str, num_heads: int = 2) -> tuple[str, dict[str, Any]]:
    """Target and options of a configuration with plain values where it refers to other groups."""
    others = {
        "beta": {"value": 0.5, "learnable": True, "std": False},
        "scales": {"value": [1 + head % 2 for head in range(num_heads)]},
        "window": {"value": 4},
        "recipe": {"attention_dropout": 0.1},
        "fidelity": {},
        "task": {},
    }
    config = OmegaConf.create({**others, "attention": yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())})
    resolved = OmegaConf.to_container(config, resolve=True)["attention"]  # type: ignore[call-overload,index]
    return resolved["target"], resolved["options"]


def mixer_class(target: str) -> type[Mixer]:
    """The class that a target names."""
    module_name, _, class_name = target.rpartition(".")
    found = getattr(importlib.import_module(module_name), class_name)
    assert issubclass(found, Mixer)
    return found


def factory(name: str, num_heads: int = 2) -> MixerFactory:
    """What builds the mixers of a configuration."""
    target, values = options(name, num_heads)
    return MixerFactory(mixer_class(target), values)
