"""Learning problems as Lightning modules around a backbone."""

from __future__ import annotations

from reattend.tasks.classification import Classification

__all__ = ["Classification"]
