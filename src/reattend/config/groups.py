"""Configuration groups and their members, found by walking the folder of YAML files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from reattend.config.loader import load_file
from reattend.config.paths import config_dir


@cache
def group_defaults() -> dict[str, str | None]:
    """Groups that a command line can choose from, with the member that `train.yaml` chooses."""
    found: dict[str, str | None] = {}
    for entry in load_file(config_dir() / "train.yaml")["defaults"]:
        if isinstance(entry, str):
            continue
        ((key, member),) = entry.items()
        *prefixes, name = str(key).split()
        if "override" not in prefixes:
            found[name] = member
    return found


def all_groups() -> list[str]:
    """Folders of YAML files, whether or not a command line chooses from them."""
    return sorted(path.name for path in config_dir().iterdir() if path.is_dir() and any(path.rglob("*.yaml")))


def members(group: str, more: Sequence[Path] = ()) -> list[str]:
    """Names in a group, with the folder for those in subfolders: `uea/japanese_vowels`.

    Args:
        group: the group's folder.
        more: folders beside `config_dir()` that Hydra was told to search.
    """
    found = set()
    for root in (config_dir(), *more):
        folder = root / group
        found |= {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")}
    return sorted(found)
