"""Binds plain values, as read from YAML, to dataclasses and to the signatures of callables.

Every function adds what is wrong to a list of problems, each with its dotted path, and goes on, so that one pass finds
all mistakes.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints, is_typeddict

from reattend.config.limits import Limit
from reattend.config.problems import suggestion
from reattend.errors import nearest


class _Unreadable:
    """Stands for a value that could not be read: its problem is already told."""

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE: Any = _Unreadable()


def bind_dataclass(kind: type, values: Any, path: str, problems: list[str]) -> Any:
    """An instance of the dataclass `kind` from a mapping, or `UNREADABLE` if anything in it is wrong."""
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    if not isinstance(values, Mapping):
        form = f" {{{', '.join(f'{name}: ...' for name in required)}}}" if required else ""
        problems.append(f"{path or 'the configuration'}: expected a mapping{form}, found {values!r}")
        return UNREADABLE
    hints = get_type_hints(kind, include_extras=True)
    bound = _bind_names(hints, required, values, path, problems, lambda _: "no such key.")
    return UNREADABLE if bound is UNREADABLE else kind(**bound)


def bind_signature(
    function: Callable[..., Any],
    values: Mapping[str, Any],
    path: str,
    problems: list[str],
    *,
    positional: int = 0,
    complete: bool = True,
) -> dict[str, Any]:
    """Keyword arguments for `function`, converted to its type hints; empty if anything is wrong.

    Args:
        function: a callable or class. Hints that cannot be evaluated are not checked, their names are.
        values: the arguments by name.
        path: where the values stand, for the problems.
        problems: what is wrong is added here.
        positional: number of leading parameters that the caller fills by position.
        complete: whether a missing argument is a problem, or others will be added later.
    """
    parameters = list(inspect.signature(function).parameters.values())[positional:]
    hints = _evaluated_hints(function)
    named = {p.name: hints.get(p.name, Any) for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        named |= {str(name): Any for name in values if name not in named}
    required = {p.name for p in parameters if complete and p.name in named and p.default is p.empty}
    name = getattr(function, "__name__", repr(function))
    bound = _bind_names(named, required, values, path, problems, lambda key: f"{name} has no option '{key}'.")
    return {} if bound is UNREADABLE else dict(bound)


def convert(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    """`value` as the type `hint` asks for: int becomes float where a float is wanted, a list a tuple; bool is no int.

    Returns `UNREADABLE` after adding a problem if it is of another type, outside a `Limit`, or no `Literal` choice.
    """
    if value is UNREADABLE or hint is Any or hint is inspect.Parameter.empty:
        return value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _convert_limited(value, arguments[0], arguments[1:], path, problems)
    if origin is Literal:
        if any(type(value) is type(choice) and value == choice for choice in arguments):
            return value
        choices = [str(choice) for choice in arguments]
        problems.append(f"{path}: {value!r} is not one of {', '.join(choices)}.{nearest(str(value), choices)}")
        return UNREADABLE
    if origin in (Union, types.UnionType):
        return _convert_union(value, arguments, path, problems)
    if is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else bind_dataclass(hint, value, path, problems)
    if is_typeddict(hint):
        return _convert_typed_dict(value, hint, path, problems)
    if _shape(hint) == "mapping":
        return _convert_mapping(value, arguments or (Any, Any), path, problems)
    if origin is tuple and isinstance(value, list | tuple):
        return _convert_tuple(value, arguments, path, problems)
    if _shape(hint) == "list" and isinstance(value, list | tuple):
        return _convert_items(value, arguments[:1] * len(value), path, problems)
    return _convert_scalar(value, hint, path, problems)


def describe(hint: Any) -> str:
    """The type as a person would name it: "int or null", "list of int"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (None, type(None)):
        return "null"
    if origin is Annotated:
        limits = " and ".join(str(limit) for limit in arguments[1:] if isinstance(limit, Limit))
        return f"{describe(arguments[0])} {limits}".strip()
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(argument) for argument in arguments)
    if _shape(hint) == "mapping":
        return "mapping"
    if _shape(hint) == "list":
        items = dict.fromkeys(describe(argument) for argument in arguments if argument is not ...)
        return f"list of {' and '.join(items)}"
    return str(getattr(hint, "__name__", hint))


def _bind_names(
    hints: Mapping[str, Any],
    required: Collection[str],
    values: Mapping[str, Any],
    path: str,
    problems: list[str],
    unknown: Callable[[str], str],
) -> Any:
    before = len(problems)
    for name in values:
        if name not in hints:
            told = unknown(str(name)) + suggestion(name, hints, "Valid names")
            problems.append(f"{_join(path, name)}: {told}")
    problems += [f"{_join(path, name)}: missing" for name in hints if name in required and name not in values]
    bound = {n: convert(values[n], hint, _join(path, n), problems) for n, hint in hints.items() if n in values}
    return bound if len(problems) == before and _readable(bound.values()) else UNREADABLE


def _convert_limited(value: Any, hint: Any, limits: tuple[Any, ...], path: str, problems: list[str]) -> Any:
    converted = convert(value, hint, path, problems)
    broken = [
        str(x) for x in limits if isinstance(x, Limit) and converted is not UNREADABLE and not x.admits(converted)
    ]
    if broken:
        problems.append(f"{path}: expected {describe(hint)} {' and '.join(broken)}, found {value!r}")
        return UNREADABLE
    return converted


def _convert_union(value: Any, arms: tuple[Any, ...], path: str, problems: list[str]) -> Any:
    if value is None and type(None) in arms:
        return None
    arms = tuple(arm for arm in arms if arm is not type(None))
    if len(arms) == 1:
        return convert(value, arms[0], path, problems)
    tries = []
    for arm in arms:
        found: list[str] = []
        converted = convert(value, arm, path, found)
        if not found:
            return converted
        tries.append(found)
    alike = [found for arm, found in zip(arms, tries, strict=True) if _shape(arm) == _shape_of_value(value)]
    if len(alike) == 1 and _shape_of_value(value) != "scalar":
        problems += alike[0]
    else:
        problems.append(f"{path}: expected {' or '.join(map(describe, arms))}, found {value!r}")
    return UNREADABLE


def _shape(hint: Any) -> str:
    """What YAML would have to hold for the type: "mapping", "list", "choice" or "scalar"."""
    origin = get_origin(hint)
    if is_dataclass(hint) or is_typeddict(hint) or hint in (dict, Mapping):
        return "mapping"
    if isinstance(origin, type) and issubclass(origin, Collection):
        return "mapping" if issubclass(origin, Mapping) else "list"
    return "choice" if origin is Literal else "scalar"


def _shape_of_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "mapping"
    if isinstance(value, list | tuple):
        return "list"
    return "choice" if isinstance(value, str) else "scalar"


def _readable(values: Iterable[Any]) -> bool:
    return not any(value is UNREADABLE for value in values)


def _convert_typed_dict(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(f"{path}: expected a mapping, found {value!r}")
        return UNREADABLE
    hints = get_type_hints(hint)
    return _bind_names(hints, hint.__required_keys__, value, path, problems, lambda _: "no such key.")


def _convert_mapping(value: Any, hints: tuple[Any, ...], path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(f"{path}: expected a mapping, found {value!r}")
        return UNREADABLE
    before = len(problems)
    items = {
        _convert_key(key, hints[0], path, problems): convert(item, hints[1], _join(path, key), problems)
        for key, item in value.items()
    }
    return items if len(problems) == before and _readable(items.values()) else UNREADABLE


def _convert_key(key: Any, hint: Any, path: str, problems: list[str]) -> Any:
    # JSON turns the keys of a saved configuration into strings.
    if hint is int and isinstance(key, str) and re.fullmatch(r"-?[0-9]+", key):
        return int(key)
    return convert(key, hint, f"{path}, key {key!r}", problems)


def _convert_tuple(value: Any, hints: tuple[Any, ...], path: str, problems: list[str]) -> Any:
    if hints[-1:] == (...,):
        hints = hints[:1] * len(value)
    if len(hints) != len(value):
        problems.append(f"{path}: expected {len(hints)} values, found {len(value)}: {list(value)!r}")
        return UNREADABLE
    items = _convert_items(value, hints, path, problems)
    return items if items is UNREADABLE else tuple(items)


def _convert_items(value: Any, hints: tuple[Any, ...], path: str, problems: list[str]) -> Any:
    items = [convert(x, hint, f"{path}[{i}]", problems) for i, (x, hint) in enumerate(zip(value, hints, strict=True))]
    return items if _readable(items) else UNREADABLE


def _convert_scalar(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    kind = get_origin(hint) or hint
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value):
            return float(value)
        problems.append(f"{path}: expected a finite number, found {value!r}")
        return UNREADABLE
    if hint is Path and isinstance(value, str):
        return Path(value)
    if kind is Callable or kind is types.FunctionType:
        fits = callable(value)
    elif hint in (int, float):
        fits = isinstance(value, hint) and not isinstance(value, bool)
    elif _shape(hint) == "list" and isinstance(value, str):
        fits = False  # a string is a sequence, and never meant as one
    elif isinstance(kind, type) and not _is_protocol(kind):
        fits = isinstance(value, kind)
    else:
        fits = True  # a hint that cannot be checked at run time (a TypeVar, a protocol)
    if fits:
        return value
    problems.append(f"{path}: expected {describe(hint)}, found {value!r}")
    return UNREADABLE


def _is_protocol(kind: type) -> bool:
    return Protocol in getattr(kind, "__mro__", ()) and bool(getattr(kind, "_is_protocol", False))


def _evaluated_hints(function: Callable[..., Any]) -> dict[str, Any]:
    body: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        return get_type_hints(body, include_extras=True)
    except (NameError, TypeError):
        return {}


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def unbind(value: Any) -> Any:
    """The plain form of a bound value: dataclasses and mappings become dictionaries, tuples lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: unbind(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: unbind(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [unbind(item) for item in value]
    return value
