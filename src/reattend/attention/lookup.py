"""Finds the part that fills a slot by its name, and checks options against signatures before anything is built."""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import pkgutil
import re
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union

from reattend.errors import ReattendError, nearest

T = TypeVar("T")

SlotChoice = str | Mapping[str, Any]

_PACKAGE = "reattend.attention"
_SLOTS = {  # where a name that fills another slot belongs
    "feature_maps": "a feature map of the kernel linear: kernel={{name: linear, feature_map: {name}}}",
    "kernels": "a kernel: kernel={name}",
    "projections": "a projection: projection={name}",
}


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
        return _imported(name, base, kind), options
    names = names_in(package)
    if name not in names:
        raise ReattendError(
            f"unknown {kind} '{name}'.{_elsewhere(name) or _likely(name, names)} There are: {', '.join(names)}; "
            f"one of your own goes by its import path"
        )
    module = importlib.import_module(f"{package}.{name}")
    for found in vars(module).values():
        if inspect.isclass(found) and issubclass(found, base) and found.__module__ == module.__name__:
            return found, options
    raise ReattendError(f"{module.__name__} defines no subclass of {base.__name__}")


def imported(path: str) -> Any:
    """What the import path names.

    Raises:
        ReattendError: there is no such module or nothing of that name in it, or its import fails; with the file and
            line of the module where it does.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise ReattendError(f"'{path}' is no import path; one looks like my_package.my_module.MyClass")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise ReattendError(f"cannot import '{path}': {error}") from error
        raise ReattendError(f"importing {module_name} failed: {_import_failure(error, module_name)}") from error
    if not hasattr(module, name):
        choices = [choice for choice in vars(module) if not choice.startswith("_")]
        raise ReattendError(f"module '{module_name}' has no '{name}'.{nearest(name, choices)}")
    return getattr(module, name)


def _imported(path: str, base: type[T], kind: str) -> type[T]:
    found = imported(path)
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ReattendError(f"'{path}' is not a subclass of {base.__module__}.{base.__name__}")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise ReattendError(f"'{path}' does not define {', '.join(missing)}, which every {kind} must")
    return found


def _import_failure(error: Exception, module_name: str) -> str:
    """`error` in one line, with the line of the module that it comes from."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    what = " ".join(f"{type(error).__name__}: {text}".split())
    if isinstance(error, SyntaxError):
        return f"{what} ({error.filename}, line {error.lineno})"
    files = {*module_name.split("."), "__init__"}
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).stem in files and frame.filename != importlib.__file__
    ]
    return what + "".join(f" ({frame.filename}, line {frame.lineno})" for frame in frames[-1:])


def _elsewhere(name: str) -> str:
    """Which other slot `name` is for, or ""."""
    found = [words for package, words in _SLOTS.items() if name in names_in(f"{_PACKAGE}.{package}")]
    return f" '{name}' is {found[0].format(name=name)}." if found else ""


def _likely(word: str, choices: Iterable[str]) -> str:
    """`nearest`, but before all others a choice that begins as `word` does, or else ends so, as far as both go."""
    known = list(choices)
    long = [choice for choice in known if min(len(choice), len(word)) > 2]
    begin = [choice for choice in long if choice.startswith(word) or word.startswith(choice)]
    end = [choice for choice in long if choice.endswith(word) or word.endswith(choice)]
    near = difflib.get_close_matches(word, begin or end, n=1, cutoff=0.0)
    return f" Did you mean '{near[0]}'?" if near else nearest(word, known)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of `function`; none where one cannot be evaluated, as under `if TYPE_CHECKING:`."""
    try:
        return typing.get_type_hints(function)
    except Exception:
        return {}


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
    hints = hints_of(function)
    found = []
    for name, value in options.items():
        if name not in parameters:
            valid = ", ".join(parameters) or "it has none"
            found.append(f"{what} has no option '{name}'.{_likely(name, parameters)} Its options: {valid}")
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
