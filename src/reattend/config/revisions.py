"""Which revision of the code a configuration's parts are at."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from reattend.config.instantiate import locate
from reattend.config.schema import RunConfig


def revisions(config: RunConfig) -> dict[str, int]:
    """Revision of each part that `config` names by import path.

    A part of ours has an attribute `revision`, 0 where it has none. A part of a user's own is at the revision of its
    source file, so that a run is done again after the file was edited.
    """
    mixers = [part.target for part in config.attention.parts.values()] or [config.attention.target]
    targets = [*mixers, config.backbone.target, config.task.target, config.task.data_target]
    return {target: _revision(target) for target in targets}


def _revision(target: str) -> int:
    part = locate(target)
    if target.startswith("reattend."):
        return int(getattr(part, "revision", 0))
    source = getattr(sys.modules[part.__module__], "__file__", None)
    content = Path(source).read_bytes() if source else b""
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "big")
