"""What a reader of a single run must not miss: how it differs from the paper's and from what its options are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from reattend.config import to_dict
from reattend.config.binding import UNREADABLE, bind_dataclass, unbind
from reattend.config.loader import load_file
from reattend.config.paths import config_dir
from reattend.config.resolve import resolved
from reattend.config.schema import FidelityConfig, RunConfig
from reattend.runs.result import Result
from reattend.runs.stamps import GENERATED, changes_numbers, is_generated, override_key

_OF_THE_RECIPE = ("scale", "recipe", "task", "backbone", "protocol", "trainer")  # the mechanism's own are no deviation
_NAMES_OF_DATA = ("task.dataset", "task.archive")


def stamps(result: Result, config: RunConfig, overrides: Sequence[str]) -> Iterator[str]:
    """One line each, the choices first."""
    changed = fidelity_changes(config)
    but = f", but {', '.join(changed)};" if changed else ""
    choices = f"protocol={result.protocol} scale={result.scale} data={result.data}"
    yield f"fidelity={result.fidelity['name']}{but} {choices}"
    own = _own_settings(overrides)
    if own:
        yield f"not the task's own settings: {', '.join(own)}"
    options = config.task.data_options
    if result.scale == "quick" and "max_length" in options:
        yield f"scale=quick has samples of {options['max_length']:,} tokens at most"
    if result.scale == "quick" and "image_size" in options:
        yield f"scale=quick has images of {options['image_size']} x {options['image_size']} pixels"
    if result.scale == "quick" and config.task.quick.get("depth"):
        yield f"scale=quick has {config.backbone.options['depth']} layer(s) of width {config.backbone.options['dim']}"
    if result.scale == "quick" or result.data == "standin":
        yield "Not to be compared with published numbers: quick scale or stand-in data."
    if is_generated(options):
        yield GENERATED


def fidelity_changes(config: RunConfig) -> list[str]:
    """Switches that are not as the file of their name has them, such as "lra.brackets=kept"."""
    path = config_dir() / "fidelity" / f"{config.fidelity.name}.yaml"
    if not path.is_file():  # a user's own
        return []
    tree = OmegaConf.create({**to_dict(config), "fidelity": dict(load_file(path))})
    named = bind_dataclass(FidelityConfig, resolved(tree.fidelity, "fidelity", []), "fidelity", [])
    if named is UNREADABLE:
        return []
    usual = dict(_leaves(unbind(named)))
    return [f"{key}={value}" for key, value in _leaves(unbind(config.fidelity)) if usual[key] != value]


def _own_settings(overrides: Sequence[str]) -> list[str]:
    """Overrides of single settings, besides choices of a group and options of the mechanism."""
    return [
        override.lstrip("+")
        for override in overrides
        if (key := override_key(override)).partition(".")[0] in _OF_THE_RECIPE
        and "." in key
        and key not in _NAMES_OF_DATA
        and changes_numbers(override)
    ]


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
