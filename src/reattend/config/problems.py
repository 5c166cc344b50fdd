"""Mistakes in a configuration: collected, then told in one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reattend.errors import ReattendError, nearest

NEXT_COMMAND = "Groups and their members: python scripts/list.py"


class ConfigError(ReattendError):
    """A configuration or command line that cannot be run; the message holds every mistake found."""


def refuse(problems: Sequence[str], next_command: str = NEXT_COMMAND) -> None:
    """Raises one `ConfigError` with all `problems`; returns if there are none."""
    told = list(dict.fromkeys(problems))
    if not told:
        return
    count = "1 mistake" if len(told) == 1 else f"{len(told)} mistakes"
    lines = "\n".join("  - " + problem.replace("\n", "\n    ") for problem in told)
    raise ConfigError(f"{count} in the configuration:\n{lines}\n{next_command}")


def suggestion(word: object, choices: Iterable[object], label: str) -> str:
    """The nearest of `choices`, or all of them after `label` if none is near."""
    names = [str(choice) for choice in choices]
    return nearest(str(word), names) or f" {label}: {', '.join(names) or 'none'}."
