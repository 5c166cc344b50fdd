"""Which revision of the code a configuration's parts are at."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reattend.config.instantiate import locate
from reattend.config.problems import ConfigError
from reattend.config.schema import RunConfig


def revisions(config: RunConfig) -> dict[str, int]:
    """Revision of each part that `config` names by import path.

    A part of ours has an attribute `revision`, 0 where it has none. A part of a user's own is at the revision of its
    source file, so that a run is done again after the file was edited; weights that a model starts from are at that of
    their content.

    Raises:
        ReattendError: such weights are missing.
    """
    found = {target: _revision(target) for target in _targets(config)}
    weights = config.backbone.pretrained.weights
    if weights is not None:
        # Imported here: torch takes seconds, and most runs start from random weights.
        from reattend.backbones.pretrained import revision

        found["pretrained"] = revision(weights)
    return found


def own_code(config: RunConfig) -> list[Path]:
    """Source files of the parts that are a user's own."""
    return [path for target in _targets(config) if not _is_ours(target) and (path := _source(target)) is not None]


def _targets(config: RunConfig) -> list[str]:
    attentions = list(config.attention.parts.values()) or [config.attention]
    mixers = [part.target for part in attentions]
    slots = dict.fromkeys(path for part in attentions for path in _own_paths(part.options))
    return [*mixers, *slots, config.backbone.target, config.task.target, config.task.data_target]


def _own_paths(options: Any) -> Iterator[str]:
    """Import paths of a user's own among options, at any depth: a kernel, a feature map, a projection, ..."""
    if isinstance(options, Mapping | list | tuple):
        for value in options.values() if isinstance(options, Mapping) else options:
            yield from _own_paths(value)
    elif isinstance(options, str) and "." in options and not _is_ours(options):
        with contextlib.suppress(ConfigError):  # another text with a dot
            locate(options)
            yield options


def _is_ours(target: str) -> bool:
    return target.startswith("reattend.")


def _source(target: str) -> Path | None:
    file = getattr(sys.modules[locate(target).__module__], "__file__", None)
    return Path(file).resolve() if file else None


def _revision(target: str) -> int:
    if _is_ours(target):
        return int(getattr(locate(target), "revision", 0))
    source = _source(target)
    content = source.read_bytes() if source else b""
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "big")
