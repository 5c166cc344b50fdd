"""Imports what a dotted path in the configuration names."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from reattend.config.problems import ConfigError, suggestion


def locate(path: str) -> Any:
    """The object that the dotted import path names; the current folder is importable.

    Raises:
        ConfigError: no such module, no such attribute in it (with the nearest), or the module fails to import.
    """
    names = path.split(".")
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        raise ConfigError(f"'{path}' is no import path; one looks like my_package.my_module.MyMixer")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    found, depth = _longest_module(names)
    for position, name in enumerate(names[depth:], start=depth):
        parent = ".".join(names[:position])
        if not hasattr(found, name):
            raise ConfigError(f"{parent} has no '{name}'.{suggestion(name, _public_names(found), 'It has')}")
        found = getattr(found, name)
    return found


def locate_callable(path: str) -> Callable[..., Any]:
    """`locate`, refusing what cannot be called, or does not tell with what."""
    found = locate(path)
    if not callable(found):
        raise ConfigError(f"{path} is a {type(found).__name__} and cannot be called")
    try:
        inspect.signature(found)
    except ValueError as error:
        raise ConfigError(f"{path} has no signature that options could be checked against") from error
    return found  # type: ignore[no-any-return]


def _longest_module(names: list[str]) -> tuple[ModuleType, int]:
    """The deepest module on the path and the number of names that it takes."""
    module: ModuleType | None = None
    for depth in range(1, len(names)):
        name = ".".join(names[:depth])
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise ConfigError(f"importing {name} failed: {error}") from error
            if module is None:
                raise ConfigError(
                    f"there is no module '{name}'; start in the folder that holds it ({os.getcwd()} does not) "
                    "or add that folder to PYTHONPATH"
                ) from error
            return module, depth - 1
        except Exception as error:
            raise ConfigError(f"importing {name} failed: {type(error).__name__}: {error}") from error
    assert module is not None
    return module, len(names) - 1


def _public_names(parent: Any) -> list[str]:
    submodules = [module.name for module in pkgutil.iter_modules(getattr(parent, "__path__", []))]
    return sorted({name for name in [*dir(parent), *submodules] if not name.startswith("_")})
