"""Composing, checking and instantiating configurations; importing it does not import torch."""

from __future__ import annotations

from reattend.config.check import check_overrides, check_reach
from reattend.config.compose import compose
from reattend.config.instantiate import build, build_mixer_factory, check_mixers, check_run
from reattend.config.locate import locate
from reattend.config.overrides import normalise_overrides, split_flags, written_out
from reattend.config.paths import config_dir
from reattend.config.problems import ConfigError
from reattend.config.read import from_dict, from_file, read, to_dict
from reattend.config.schema import RunConfig

__all__ = [
    "ConfigError",
    "RunConfig",
    "build",
    "build_mixer_factory",
    "check_mixers",
    "check_overrides",
    "check_reach",
    "check_run",
    "compose",
    "config_dir",
    "from_dict",
    "from_file",
    "locate",
    "normalise_overrides",
    "read",
    "split_flags",
    "to_dict",
    "written_out",
]
