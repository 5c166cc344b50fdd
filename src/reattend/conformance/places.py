"""Where in the code of a mixer to look."""

from __future__ import annotations

import inspect
import sys
import traceback
from pathlib import Path

from torch import nn

from reattend.attention import Mixer

_NOT_THE_MIXER = tuple(
    str(Path(str(module.__file__)).parent) for module in (sys.modules["torch"], sys.modules[__package__])
)


def location(part: type) -> str:
    """File and line where the class is defined."""
    try:
        file, (_, line) = inspect.getsourcefile(part), inspect.getsourcelines(part)
    except (OSError, TypeError):
        return f"module {part.__module__}"
    return f"{short_path(str(file))}:{line}"


def method_place(mixer_class: type[Mixer], mixer: Mixer | None, method: str) -> str:
    """ "MyMixer.forward (my_module.py:31)"; where our mixer holds a part of the user's own, that part's `forward`."""
    own = _own_parts(mixer) if mixer is not None and method == "forward" and _is_ours(mixer_class) else []
    return ", ".join(_method_place(part, method) for part in own or [mixer_class])


def raised_place(error: BaseException) -> str:
    """File, line and code that raised, the last that is neither torch's nor of the checks; "" if there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_NOT_THE_MIXER, "<"))
    ]
    return f"{short_path(frames[-1].filename)}:{frames[-1].lineno}, {frames[-1].line!r}" if frames else ""


def _method_place(part: type, method: str) -> str:
    code = getattr(inspect.unwrap(getattr(part, method)), "__code__", None)
    where = f"{short_path(code.co_filename)}:{code.co_firstlineno}" if code else location(part)
    return f"{part.__name__}.{method} ({where})"


def _own_parts(mixer: Mixer) -> list[type]:
    kinds = {type(module): None for module in mixer.modules()}
    return [kind for kind in kinds if not _is_ours(kind) and not kind.__module__.startswith("torch.")]


def _is_ours(kind: type[nn.Module]) -> bool:
    return kind.__module__.startswith("reattend.")


def short_path(file: str) -> str:
    """The path as seen from the current folder if it is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
