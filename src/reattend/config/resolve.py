"""From a composed configuration to plain values, without stopping at the first value that cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from reattend.config.binding import UNREADABLE
from reattend.config.groups import members
from reattend.config.loader import load, load_file, whole_member
from reattend.config.paths import config_dir

LAYERED = "reattend.attention.LayeredMixerFactory"


def resolved(node: DictConfig | ListConfig, path: str, problems: list[str]) -> Any:
    """`node` as dictionaries and lists with interpolations replaced; what cannot be read becomes `UNREADABLE`."""
    if isinstance(node, DictConfig):
        return {key: _value(node, key, f"{path}.{key!s}" if path else str(key), problems) for key in node}
    return [_value(node, index, f"{path}[{index}]", problems) for index in range(len(node))]


def _value(node: Any, key: Any, path: str, problems: list[str]) -> Any:
    try:
        value = node[key]
    except MissingMandatoryValue:
        problems.append(f"{path}: it needs a value: {path}=...")
        return UNREADABLE
    except OmegaConfBaseException as error:
        problems.append(f"{path}: {str(error).splitlines()[0]}")
        return UNREADABLE
    return resolved(value, path, problems) if isinstance(value, DictConfig | ListConfig) else value


def plain_attentions() -> list[str]:
    """Attentions that one YAML file says all of: those that a layer can be given by name."""
    return [name for name in members("attention") if _target(name) not in (LAYERED, "???")]


@cache
def _target(name: str) -> str:
    return str(load_file(config_dir() / "attention" / f"{name}.yaml").get("target"))


def attention_within(tree: Mapping[str, Any], name: str, problems: list[str]) -> Any:
    """The group `attention` as `attention=name` would give it where all else is as in the resolved `tree`."""
    root = OmegaConf.create({**tree, "attention": _attention_file(name)})
    return resolved(root.attention, f"attention={name}: attention", problems)


@cache
def _attention_file(name: str) -> DictConfig:
    attention = whole_member("attention", name)
    return OmegaConf.create(attention) if attention is not None else load([], f"attention/{name}").attention
