"""What a run's own summary and the pages of tables both say of how runs differ from published ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GENERATED = "Pathfinder is generated here by a rule of its own: not comparable with published numbers."

_SAME_NUMBERS = ("trainer", "logger", "launcher", "compile", "rerun", "outputs", "data.root")


def is_generated(data_options: Mapping[str, Any]) -> bool:
    """Whether data follows the original's rule in kind only, as Pathfinder's, which is not all public."""
    return data_options.get("images") == "generated"


def override_key(override: str) -> str:
    """The key of a command line's override, without Hydra's signs before it."""
    return override.lstrip("+~").partition("=")[0]


def changes_numbers(override: str) -> bool:
    """Whether an override is of a key that numbers depend on."""
    key = override_key(override)
    same = any(key == ignored or key.startswith(f"{ignored}.") for ignored in _SAME_NUMBERS)
    return not same or key == "trainer.precision"
