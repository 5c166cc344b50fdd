"""Whether a mixer class of the user's own, and what fills its slots, keep the contract, as far as shows unbuilt."""

from __future__ import annotations

import inspect
import traceback
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from reattend.attention.contract import Capabilities, Mixer, MixerSpec
from reattend.attention.lookup import hints_of, imported, option_problems
from reattend.attention.slots import FeatureMap, Kernel, Projection
from reattend.errors import ReattendError

Part = Projection | Kernel | FeatureMap

_KINDS: dict[type, str] = {Projection: "projection", Kernel: "kernel", FeatureMap: "feature map"}


def own_parts(options: Any) -> Iterator[tuple[type[Part], dict[str, Any]]]:
    """The classes of the user's own that fill slots by import paths anywhere in `options`, and their own options."""
    if isinstance(options, str):
        yield from _own_part(options, {})
    elif isinstance(options, Mapping):
        chosen = {name: value for name, value in options.items() if name != "name"}
        if isinstance(options.get("name"), str):
            yield from _own_part(options["name"], chosen)
        for value in chosen.values():
            yield from own_parts(value)


def _own_part(path: str, options: dict[str, Any]) -> Iterator[tuple[type[Part], dict[str, Any]]]:
    if "." not in path:
        return
    try:
        found = imported(path)
    except ReattendError:
        return  # Which the slot's own problems tell.
    if inspect.isclass(found) and issubclass(found, Part) and not found.__module__.startswith("reattend."):
        yield found, options


def contract_problems(mixer_class: type[Mixer | Part], options: Mapping[str, Any]) -> list[str]:
    """Where `mixer_class`, or a class that fills a slot, breaks the contract of its base; empty if nowhere.

    Checked are: abstract methods overridden, `capabilities` a classmethod, a first argument that takes the spec, and
    `options` by keyword only.
    """
    name = mixer_class.__name__
    kind = next((kind for base, kind in _KINDS.items() if issubclass(mixer_class, base)), "mixer")
    missing = sorted(mixer_class.__abstractmethods__)
    found = [f"{name} does not define {method}, which every {kind} must" for method in missing]
    capabilities = inspect.getattr_static(mixer_class, "capabilities", None)
    if capabilities is not None and not isinstance(capabilities, classmethod):
        found.append(
            f"{name}.capabilities must be a classmethod: write @classmethod above def capabilities(cls, **options)"
        )
    return found + (_spec_problems(mixer_class) or _positional_problems(mixer_class, options))


def capabilities_problems(mixer_class: type[Mixer], options: Mapping[str, Any]) -> list[str]:
    """Why `mixer_class.capabilities` does not give `Capabilities` for `options`, which its signature must take.

    What fills its slots with classes of the user's own is asked first, and whether they keep the contract.
    """
    found = [problem for part, chosen in own_parts(options) for problem in _part_problems(part, chosen)]
    return found or _capabilities_problems(mixer_class, options)


def _part_problems(part: type[Part], options: Mapping[str, Any]) -> list[str]:
    found = contract_problems(part, options)
    if found or issubclass(part, FeatureMap) or option_problems(part.__name__, part, options):
        return found
    return _capabilities_problems(part, options)


def _capabilities_problems(mixer_class: type[Mixer | Projection | Kernel], options: Mapping[str, Any]) -> list[str]:
    try:
        returned: object = mixer_class.capabilities(**options)
    except ReattendError:
        return []  # A reason against the options, which `problems` tells.
    except Exception as error:
        return [told(error, [mixer_class], "capabilities")]
    if isinstance(returned, Capabilities):
        return []
    where = f"{mixer_class.__name__}.capabilities"
    return [f"{where} must return reattend.attention.Capabilities(...), not {returned!r}"]


def told(error: Exception, classes: Sequence[type[Mixer | Part]], method: str) -> str:
    """`error` in one line, with the file and line of the user's own code that it comes from.

    Args:
        error: what was raised.
        classes: those whose files are the user's.
        method: name of the method that was called; it of the first class stands in when the error was raised outside
            those files.
    """
    cls, file = classes[0], inspect.getsourcefile(classes[0])
    code = getattr(getattr(cls, method), "__code__", None)
    line = code and code.co_firstlineno
    for frame in traceback.extract_tb(error.__traceback__):
        within = [own for own in classes if inspect.getsourcefile(own) == frame.filename]
        if within:
            file, line = frame.filename, frame.lineno
            cls = next((own for own in within if _holds(own, method, line)), within[0])
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{cls.__name__}.{method} fails: {what} ({file}, line {line})"


def _holds(cls: type, method: str, line: int | None) -> bool:
    """Whether `line` of its file is in the method of `cls`."""
    try:
        lines, first = inspect.getsourcelines(getattr(cls, method))
    except (OSError, TypeError):
        return False
    return line is not None and first <= line < first + len(lines)


def _parameters(mixer_class: type[Mixer | Part]) -> list[inspect.Parameter]:
    return list(inspect.signature(mixer_class.__init__).parameters.values())[1:]


def _spec_problems(mixer_class: type[Mixer | Part]) -> list[str]:
    if _takes_spec(mixer_class):
        return []
    names = [p.name for p in _parameters(mixer_class) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    options = f", *, {', '.join(names)}" if names and mixer_class.__init__ is not nn.Module.__init__ else ""
    return [
        f"the first argument of {mixer_class.__name__} must be the MixerSpec: write def __init__(self, spec{options})"
    ]


def _takes_spec(mixer_class: type[Mixer | Part]) -> bool:
    first = next(iter(_parameters(mixer_class)), None)
    if first is None or mixer_class.__init__ is nn.Module.__init__:
        return False
    if first.kind is first.VAR_POSITIONAL or first.name == "spec":
        return first.kind is not first.KEYWORD_ONLY
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    hints = hints_of(mixer_class.__init__)
    if first.name not in hints:
        return first.default is first.empty or "MixerSpec" in str(first.annotation)
    hint = hints[first.name]
    return hint is Any or MixerSpec in (hint, *typing.get_args(hint))


def _positional_problems(mixer_class: type[Mixer | Part], options: Mapping[str, Any]) -> list[str]:
    others = [p for p in _parameters(mixer_class)[1:] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    wrong = [p.name for p in others if p.name in options or p.default is p.empty]
    return [
        f"'{name}' of {mixer_class.__name__} must be by keyword only: write def __init__(self, spec, *, {name})"
        for name in wrong
    ]
