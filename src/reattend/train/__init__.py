"""From a command line to a finished run."""

from __future__ import annotations

from reattend.train.command import main

__all__ = ["main"]
