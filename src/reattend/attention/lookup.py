"""Finds the part that fills a slot by its name, and checks options against signatures before anything is built."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union

from reattend.errors import ReattendError, nearest

T = TypeVar("T")

SlotChoice = str | Mapping[str, Any]


def names_in(package: str) -> list[str]:
    """Names of the modules of `package`, which are the names that a slot's choice may have."""
    return sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__))


def resolve(package: str, base: type[T], choice: SlotChoice) -> tuple[type[T], dict[str, Any]]:
    """The class and the options that `choice` stands for.

    Args:
        package: import path of the package with one module per choice.
        base: class that the chosen one derives from.
        choice: a module of `package`, or the import path of a class of one's own; or a mapping with that under `name`
            and the part's options beside it.

    Raises:
        ReattendError: for an unknown name or path, or a class that does not derive from `base`.
    """
    options = {} if isinstance(choice, str) else dict(choice)
    name = choice if isinstance(choice, str) else options.pop("name", None)
    kind = re.sub("(?<!^)(?=[A-Z])", " ", base.__name__).lower()
    if not isinstance(name, str):
        raise ReattendError(f"a {kind} is a name, or a mapping with the key 'name' beside its options; got {choice!r}")
    if "." in name:
        return _imported(name, base), options
    names = names_in(package)
    if name not in names:
        raise ReattendError(
            f"unknown {kind} '{name}'.{nearest(name, names)} There are: {', '.join(names)}; "
            f"one of your own goes by its import path"
        )
    module = importlib.import_module(f"{package}.{name}")
    for found in vars(module).values():
        if inspect.isclass(found) and issubclass(found, base) and found.__module__ == module.__name__:
            return found, options
    raise ReattendError(f"{module.__name__} defines no subclass of {base.__name__}")


def _imported(path: str, base: type[T]) -> type[T]:
    module_name, _, class_name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ImportError as error:
        raise ReattendError(f"cannot import '{path}': {error}") from error
    if found is None:
        choices = [name for name in vars(importlib.import_module(module_name)) if not name.startswith("_")]
        raise ReattendError(f"module '{module_name}' has no '{class_name}'.{nearest(class_name, choices)}")
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ReattendError(f"'{path}' is not a subclass of {base.__module__}.{base.__name__}")
    return found


def option_problems(what: str, target: Callable[..., Any], options: Mapping[str, Any]) -> list[str]:
    """Unknown, missing and wrongly typed keyword options of `target`, one sentence each.

    Only keyword-only parameters are options; what `target` takes by position is not the user's to give.
    """
    function = target.__init__ if inspect.isclass(target) else target
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    hints = typing.get_type_hints(function)
    found = []
    for name, value in options.items():
        if name not in parameters:
            valid = ", ".join(parameters) or "it has none"
            found.append(f"{what} has no option '{name}'.{nearest(name, parameters)} Its options: {valid}")
        elif not _fits(value, hints.get(name, Any)):
            found.append(f"option '{name}' of {what} must be {_words(hints[name])}, not {value!r}")
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            found.append(f"{what} needs the option '{name}'")
    return found


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if hint in (None, NoneType):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str):
        return isinstance(value, hint)
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Sequence):
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and (not arguments or all(_fits(item, arguments[0]) for item in value))
    return True


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Mapping):
        return "a mapping"
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Sequence):
        return "a list" + (f" of {_words(arguments[0])}" if arguments else "")
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a string", NoneType: "null"}
    return words.get(hint, str(hint))
