"""Settings that nothing reads: a window where no attention has one, a size of decoders where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from reattend.config.groups import members
from reattend.config.keys import paths
from reattend.config.loader import load, whole_member
from reattend.config.overrides import normalise_overrides, written_out
from reattend.config.problems import ConfigError
from reattend.config.resolve import LAYERED

# Groups that act only through what refers to their values, and what of a run decides whether anything does.
_ACTS_IN = {
    "beta": ("attention",),
    "scales": ("attention",),
    "window": ("attention",),
    "scale": ("task", "backbone", "recipe"),
}
_NEUTRAL = ("none", "published")  # members that are right where there is nothing to set


def reach_problems(overrides: Sequence[str], composed: Iterable[DictConfig]) -> list[str]:
    """Those of `overrides` that set what none of the configurations reads.

    Args:
        overrides: of a command line, checked; those of a `best=FILE` are not asked for.
        composed: what its choices compose to; no more of them are asked for once all settings have been found.
    """
    unread = [override for override in _parsed(overrides) if _is_asked(override)]
    seen: list[Any] = []
    for cfg in composed if unread else ():
        seen.append(OmegaConf.to_container(cfg))
        unread = _unread(unread, seen[-1])
        if not unread:
            return []
    return [_told(override, seen) for override in unread] if seen else []


def overrides_read(overrides: Sequence[str]) -> list[str]:
    """Without those that the run of these `overrides` does not read: of a sweep or a table they are for other runs."""
    try:
        asked = [override for override in _parsed(overrides) if _is_asked(override)]
        if not asked:
            return list(overrides)
        tree = OmegaConf.to_container(load(normalise_overrides(written_out(overrides))))
    except (ConfigError, HydraException):  # a run that cannot be composed is told as it was written
        return list(overrides)
    unread = {override.input_line for override in _unread(asked, tree)}
    return [override for override in overrides if not unread.intersection(normalise_overrides([override]))]


def _unread(overrides: Iterable[Override], node: Any) -> list[Override]:
    """Those that no interpolation in `node` refers to."""
    texts = list(_interpolations(node))
    return [override for override in overrides if not any(map(_pattern(override).search, texts))]


def _parsed(overrides: Sequence[str]) -> list[Override]:
    typed = [override for override in overrides if not override.startswith("best=")]
    return OverridesParser.create().parse_overrides(normalise_overrides(typed))


def _is_asked(override: Override) -> bool:
    group, _, key = override.key_or_group.partition(".")
    if group not in _ACTS_IN or override.type is OverrideType.DEL or override.package is not None:
        return False
    value = override.value()
    if key:
        return key not in ("name", "source") and value is not None and value is not False
    choices = value.list if isinstance(value, ChoiceSweep) else [value]
    return group != "scale" and not all(str(choice) in _NEUTRAL for choice in choices)


def _pattern(override: Override) -> re.Pattern[str]:
    """Finds the key in an interpolation, or any key of a group, or the whole group."""
    group, _, key = override.key_or_group.partition(".")
    end = rf"{re.escape(key)}(?!\w)" if key else ""
    return re.compile(rf"(?<![\w.]){group}(\.{end}|\}})")


def _interpolations(node: Any) -> Iterator[str]:
    """Every text with an interpolation, those of the parts of an attention by layers among them."""
    if isinstance(node, Mapping):
        for inner in node.values():
            yield from _interpolations(inner)
        if node.get("target") == LAYERED:
            at, last = node.get("at"), node.get("last")
            parts = [node.get("default"), *(at.values() if isinstance(at, Mapping) else ())]
            parts += last if isinstance(last, Mapping) else ()
            for name in dict.fromkeys(map(str, parts)):
                yield from _interpolations(whole_member("attention", name))
    elif isinstance(node, list):
        for inner in node:
            yield from _interpolations(inner)
    elif isinstance(node, str) and "${" in node:
        yield node


def _told(override: Override, trees: Sequence[Any]) -> str:
    group, _, key = override.key_or_group.partition(".")
    names = {f"{part}={tree[part].get('name')}": None for tree in trees for part in _ACTS_IN[group]}
    told = f"{(override.input_line or '').lstrip('+')}: nothing reads it with {', '.join(names)}."
    if group == "scale":
        others = [p for p in paths(trees[0]) if p.endswith(f".{key}") and p.startswith(("recipe.", "backbone."))]
        read = {found for text in _interpolations(trees[0]) for found in re.findall(r"(?<![\w.])scale\.\w+", text)}
        return (
            f"{told} Did you mean {' or '.join(others)}?" if others else f"{told} Read are {', '.join(sorted(read))}."
        )
    readers = [name for name in members("attention") if not _unread([override], whole_member("attention", name))]
    if {tree["attention"].get("name") for tree in trees} & set(readers):
        return f"{told} An override of attention.options has taken its place."
    return f"{told} Attentions that do: {', '.join(readers)}."
