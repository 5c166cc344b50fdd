"""Whether the key of an override exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hydra.core.override_parser.types import Override, OverrideType

from reattend.config.problems import suggestion
from reattend.config.schema import RunConfig
from reattend.errors import nearest

_MOST_SUGGESTED = 3  # a name such as `source` is everywhere


def key_problem(override: Override, tree: Any) -> str | None:
    """What is wrong with the key of `override`, or None.

    A key exists if it is in the composed and unresolved `tree` or in the schema. Names that are added on purpose (with
    a plus) are free where the schema has an open mapping.
    """
    told = (override.input_line or "").removeprefix("++")
    names = override.key_or_group.split(".")
    node, hint = tree, RunConfig
    for depth, name in enumerate(names):
        parent = ".".join(names[:depth])
        inner = node if isinstance(node, Mapping) else {}
        hint = _structured(hint)
        declared = get_type_hints(hint) if is_dataclass(hint) else {}
        known = {str(key) for key in inner} | set(declared)
        if name not in known:
            if _is_open(hint) and override.type in (OverrideType.ADD, OverrideType.FORCE_ADD):
                return None
            elsewhere = _elsewhere(name, parent, tree) if depth == len(names) - 1 and (known or not parent) else ""
            return f"{told}: {_unknown(name, parent, known, elsewhere)}"
        node = inner.get(name)
        hint = declared[name] if name in declared else _item(hint)
    return None


def _elsewhere(name: str, parent: str, tree: Any) -> str:
    """ " Did you mean x.y.name?" for keys of that name at other depths, those below `parent` before all others."""
    found = [path for path in paths(tree) if path.endswith(f".{name}")]
    found = [path for path in found if path.startswith(f"{parent}.")] or found
    return f" Did you mean {' or '.join(found)}?" if 0 < len(found) <= _MOST_SUGGESTED else ""


def paths(node: Any, prefix: str = "") -> Iterator[str]:
    """The dotted path of every key in `node`."""
    if isinstance(node, Mapping):
        for key, inner in node.items():
            yield f"{prefix}{key}"
            yield from paths(inner, f"{prefix}{key}.")


def _unknown(name: str, parent: str, known: set[str], elsewhere: str) -> str:
    if not parent:
        return f"there is no group or key '{name}'.{elsewhere or suggestion(name, sorted(known), 'There are')}"
    if not known:
        return f"{parent} is a single value, it has no key '{name}'"
    near = elsewhere or nearest(name, known) or f" Its keys: {', '.join(sorted(known))}."
    return f"{parent} has no key '{name}'.{near}"


def _structured(hint: Any) -> Any:
    """The dataclass or mapping in an optional type."""
    if get_origin(hint) in (Union, UnionType):
        return next((arm for arm in get_args(hint) if is_dataclass(arm) or _is_open(arm)), hint)
    return hint


def _is_open(hint: Any) -> bool:
    origin = get_origin(hint)
    return hint is Any or (isinstance(origin, type) and issubclass(origin, Mapping))


def _item(hint: Any) -> Any:
    """The type of the items of a mapping."""
    return get_args(hint)[1] if _is_open(hint) and get_args(hint) else Any
