"""Whether a mixer class of the user's own keeps the contract, as far as that shows without building it."""

from __future__ import annotations

import inspect
import traceback
import typing
from collections.abc import Mapping
from typing import Any

from torch import nn

from reattend.attention.contract import Capabilities, Mixer, MixerSpec
from reattend.errors import ReattendError


def contract_problems(mixer_class: type[Mixer], options: Mapping[str, Any]) -> list[str]:
    """Where `mixer_class` breaks the contract of `Mixer`; empty if nowhere.

    Checked are: abstract methods overridden, `capabilities` a classmethod, a first argument that takes the spec, and
    `options` by keyword only.
    """
    name = mixer_class.__name__
    missing = sorted(mixer_class.__abstractmethods__)
    found = [f"{name} does not define {method}, which every mixer must" for method in missing]
    if not isinstance(inspect.getattr_static(mixer_class, "capabilities"), classmethod):
        found.append(
            f"{name}.capabilities must be a classmethod: write @classmethod above def capabilities(cls, **options)"
        )
    return found + (_spec_problems(mixer_class) or _positional_problems(mixer_class, options))


def capabilities_problems(mixer_class: type[Mixer], options: Mapping[str, Any]) -> list[str]:
    """Why `mixer_class.capabilities` does not give `Capabilities` for `options`, which its signature must take."""
    try:
        returned: object = mixer_class.capabilities(**options)
    except ReattendError:
        return []  # A reason against the options, which `problems` tells.
    except Exception as error:
        return [told(error, mixer_class, "capabilities")]
    if isinstance(returned, Capabilities):
        return []
    where = f"{mixer_class.__name__}.capabilities"
    return [f"{where} must return reattend.attention.Capabilities(...), not {returned!r}"]


def told(error: Exception, mixer_class: type[Mixer], method: str) -> str:
    """`error` in one line, with the file and line of the user's own code that it comes from.

    Args:
        error: what was raised.
        mixer_class: its file is the user's.
        method: name of the method that was called; stands in when the error was raised outside that file.
    """
    file = inspect.getsourcefile(mixer_class)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    code = getattr(getattr(mixer_class, method), "__code__", None)
    line = lines[-1] if lines else code and code.co_firstlineno
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{mixer_class.__name__}.{method} fails: {what} ({file}, line {line})"


def _parameters(mixer_class: type[Mixer]) -> list[inspect.Parameter]:
    return list(inspect.signature(mixer_class.__init__).parameters.values())[1:]


def _spec_problems(mixer_class: type[Mixer]) -> list[str]:
    if _takes_spec(mixer_class):
        return []
    names = [p.name for p in _parameters(mixer_class) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    options = f", *, {', '.join(names)}" if names and mixer_class.__init__ is not nn.Module.__init__ else ""
    return [
        f"the first argument of {mixer_class.__name__} must be the MixerSpec: write def __init__(self, spec{options})"
    ]


def _takes_spec(mixer_class: type[Mixer]) -> bool:
    first = next(iter(_parameters(mixer_class)), None)
    if first is None or mixer_class.__init__ is nn.Module.__init__:
        return False
    if first.kind is first.VAR_POSITIONAL or first.name == "spec":
        return first.kind is not first.KEYWORD_ONLY
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    if first.annotation is first.empty:
        return first.default is first.empty
    hint = typing.get_type_hints(mixer_class.__init__)[first.name]
    return hint is Any or MixerSpec in (hint, *typing.get_args(hint))


def _positional_problems(mixer_class: type[Mixer], options: Mapping[str, Any]) -> list[str]:
    others = [p for p in _parameters(mixer_class)[1:] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    wrong = [p.name for p in others if p.name in options or p.default is p.empty]
    return [
        f"'{name}' of {mixer_class.__name__} must be by keyword only: write def __init__(self, spec, *, {name})"
        for name in wrong
    ]
