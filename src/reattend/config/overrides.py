"""The overrides among the arguments of a command line, in the form that Hydra takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from reattend.config.loader import load_file
from reattend.config.paths import config_dir
from reattend.config.problems import ConfigError
from reattend.config.schema import RunConfig

_FLAGS_WITH_VALUE = {
    "--cfg",
    "-c",
    "--package",
    "-p",
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
    "--experimental-rerun",
    "--info",
    "-i",
}
_MODES = {"-r": "--run", "-m": "--multirun", "-c": "--cfg", "-i": "--info", "-sc": "--shell-completion"}
_NAMED_BY_A_CLASS = {("attention", "options"), ("task", "data_options")}
_BARE = re.compile(r"[\w/.+@%\-]+", re.ASCII)  # what Hydra's grammar takes without quotation marks
_ASSIGNMENT = re.compile(r"(?P<key>[A-Za-z_][\w.\-]*)=")


def normalise_overrides(overrides: Sequence[str]) -> list[str]:
    """Marks overrides of optional keys with Hydra's `++`, so that none has to be typed.

    Optional are `attention.options.*` and `task.data_options.*` at any depth, whose names the class of the mixer and of
    the data decides, and every field of the schema that has a default (`attention.at`, `scale.epochs`, ...). All else,
    flags too, is returned as it is.
    """
    marked = []
    for override in overrides:
        match = _ASSIGNMENT.match(override)
        marked.append(f"++{override}" if match and _is_optional(match["key"].split(".")) else override)
    return marked


def override_text(key: str, value: Any) -> str:
    """The override `key=value` as Hydra reads it; for a shell it is quoted besides."""
    if isinstance(value, list | tuple):
        return f"{key}=[{','.join(map(str, value))}]"
    text = "null" if value is None else str(value)
    if not _BARE.fullmatch(text):
        # Hydra reads a backslash as itself, but for those right before a quotation mark.
        escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text)
        text = f'"{escaped}"'
    return f"{key}={text}"


def _is_optional(path: list[str]) -> bool:
    if tuple(path[:2]) in _NAMED_BY_A_CLASS:
        return True
    kind: Any = RunConfig
    optional = False
    for name in path:
        known = {f.name: f for f in fields(kind)} if is_dataclass(kind) else {}
        if name not in known:
            return False
        optional = known[name].default is not MISSING or known[name].default_factory is not MISSING
        kind = get_type_hints(kind)[name]
    return optional


def written_out(overrides: Sequence[str]) -> list[str]:
    """`overrides` with those that a search found in the place of each `best=FILE`; what stands behind it wins.

    Raises:
        ConfigError: a file is missing, or not one of a search.
    """
    found: list[str] = []
    for override in overrides:
        if not override.startswith("best="):
            found.append(override)
            continue
        path = Path(override.removeprefix("best=")).expanduser()
        if not path.is_file():
            raise ConfigError(f"{override}: there is no such file; a search writes it (python scripts/list.py search)")
        kept = load_file(path).get("overrides")
        if not isinstance(kept, list) or not all(isinstance(entry, str) for entry in kept):
            raise ConfigError(f"{override}: it holds no overrides of a search, which writes them into best.yaml")
        found += kept
    return found


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Hydra's flags, each with its value behind it (`--cfg job`), and the overrides among command-line arguments."""
    flags, overrides = [], []
    expects_value = False
    for argument in arguments:
        if expects_value or argument.startswith("-"):
            flags.append(argument)
            expects_value = argument in _FLAGS_WITH_VALUE and not expects_value
        else:
            overrides.append(argument)
    return flags, overrides


def searched_folders(flags: Sequence[str]) -> list[Path]:
    """Folders of YAML files that the flag `--config-dir` adds."""
    found = []
    for flag, following in pairwise([*flags, ""]):
        name, _, attached = flag.partition("=")
        if name in ("--config-dir", "-cd"):
            found.append(Path(attached or following).absolute())
    return found


def flag_problems(flags: Sequence[str]) -> list[str]:
    """What Hydra would answer with a traceback or its search path: flags that point nowhere or miss another."""
    folders = searched_folders(flags)
    given = {flag.partition("=")[0] for flag in flags}
    last = flags[-1] if flags else ""
    problems = []
    if last in _FLAGS_WITH_VALUE - {"--info", "-i"} and (len(flags) < 2 or flags[-2] not in _FLAGS_WITH_VALUE):
        problems.append(f"{last}: its value is missing: {last} VALUE")
        folders = folders[:-1] if last in ("--config-dir", "-cd") else folders
    problems += [f"--config-dir: {folder} is not a folder" for folder in folders if not folder.is_dir()]
    for flag, following in pairwise([*flags, ""]):
        name, _, attached = flag.partition("=")
        wanted = (attached or following).removesuffix(".yaml")
        if name in ("--config-name", "-cn") and wanted:
            roots = [config_dir(), *folders]
            if not any((root / f"{wanted}.yaml").is_file() for root in roots):
                searched = " or ".join(map(str, roots))
                problems.append(f"{name}: there is no {wanted}.yaml in {searched}; without the flag it is train.yaml")
    modes = {_MODES.get(flag, flag) for flag in given} & set(_MODES.values())
    if len(modes) > 1:
        problems.append(f"{' and '.join(sorted(modes))}: one of them at a time")
    if "--resolve" in given and not given & {"--cfg", "-c", "--help", "-h"}:
        problems.append("--resolve: it belongs to --cfg; write --cfg job --resolve")
    return problems
