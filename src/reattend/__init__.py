"""Retrains the tables of four attention papers and says whether their numbers and claims hold."""

from __future__ import annotations

from typing import Any

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    # Found on first use: `import reattend` must not take the seconds that torch takes.
    if name == "load":
        from reattend.runs.load import load

        return load
    raise AttributeError(f"module 'reattend' has no attribute '{name}'")
