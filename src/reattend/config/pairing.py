"""Whether a backbone can read a task's data, asked of their signatures before either is built."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from reattend.config.groups import members
from reattend.config.loader import whole_member
from reattend.config.locate import locate_callable
from reattend.config.problems import ConfigError


def pairing_problems(tree: Mapping[str, Any]) -> list[str]:
    """Why the backbone of a resolved configuration does not fit its task, with those that do; empty if it fits.

    A data module says by `gives` what a backbone is always built from, a task by `causal` that each token is predicted
    from those before it. Nothing is found where one of them says nothing, or cannot be imported.
    """
    task, backbone = tree.get("task"), tree.get("backbone")
    if not isinstance(task, Mapping) or not isinstance(backbone, Mapping):
        return []
    reason = _misfit(task, backbone)
    if reason is None:
        return []
    others = ((name, whole_member("backbone", name)) for name in members("backbone"))
    able = [name for name, other in others if other is not None and _misfit(task, other) is None]
    valid = f" Backbones that fit: {', '.join(able)}; without backbone=... the task takes its own." if able else ""
    return [f"backbone={backbone.get('name')} does not fit task={task.get('name')}: {reason}.{valid}"]


def _misfit(task: Mapping[str, Any], backbone: Mapping[str, Any]) -> str | None:
    """In what way they do not fit."""
    targets = task.get("target"), task.get("data_target"), backbone.get("target")
    try:
        learner, data, model = (locate_callable(str(target)) for target in targets)
    except ConfigError:  # told where targets are checked
        return None
    gives = getattr(data, "gives", None)
    if gives is None:
        return None
    given_options = backbone.get("options")
    options = given_options if isinstance(given_options, Mapping) else {}
    parameters = list(inspect.signature(model).parameters.values())[1:]  # the first makes the mixers
    needs = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in options]
    lacking = [name for name in needs if name not in gives]
    if lacking:
        return f"it needs {_listing(lacking)}, the data has {_listing(gives)}"
    refused = [name for name in gives if name not in {p.name for p in parameters}]
    if refused and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        return f"it does not take the data's {_listing(refused)}"
    if getattr(learner, "causal", False) and not _is_causal(model, options):
        return "tokens are predicted from those before them, and by its place() it is not causal"
    return None


def _is_causal(backbone: Any, options: Mapping[str, Any]) -> bool:
    place = getattr(backbone, "place", None)
    return place is not None and bool(place(**options).get("causal"))


def _listing(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
