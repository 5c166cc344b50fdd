"""Hydra's composition without its global state and with one kind of error."""

from __future__ import annotations

import copy
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from reattend.config.paths import config_dir
from reattend.config.problems import ConfigError


def load(
    overrides: Sequence[str], config_name: str = "train", more: Sequence[Path] = (), with_hydra: bool = False
) -> DictConfig:
    """Composes `config_name` with Hydra `overrides`, nothing resolved.

    Args:
        overrides: as on the command line, in Hydra's grammar.
        config_name: path below the folder of YAML files, without suffix.
        more: further folders to search.
        with_hydra: keeps Hydra's own settings, below `hydra`.

    Raises:
        ConfigError: Hydra, OmegaConf or the YAML parser refused; with their reason in one message.
    """
    searched = tuple(path.absolute() for path in more)
    files = stamp((config_dir(), *searched))
    try:
        quick = None if searched or with_hydra else _with_whole_members(overrides, config_name, files)
        return quick or copy.deepcopy(_composed(tuple(overrides), config_name, searched, with_hydra, files))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(reason(error)) from error


@lru_cache(maxsize=256)
def _composed(
    overrides: tuple[str, ...], config_name: str, more: tuple[Path, ...], with_hydra: bool, files: object
) -> DictConfig:
    """Composed once for as long as the files are as `files` says: it takes Hydra a tenth of a second."""
    search = [f"hydra.searchpath=[{','.join(f'file://{path}' for path in more)}]"] if more else []
    with _hydra():
        return hydra_compose(config_name, [*search, *overrides], return_hydra_config=with_hydra)


def _with_whole_members(overrides: Sequence[str], config_name: str, files: object) -> DictConfig | None:
    """What Hydra would compose, from what it composed before for other cells of a table; None where there is no way.

    Cells differ mostly in members that are all of their group by themselves, such as an attention. Hydra composes the
    rest, and these are put in the place of what the group has there.
    """
    keys = Counter(re.split(r"[=.@]", override.lstrip("+~"))[0] for override in overrides)
    whole: dict[str, dict[str, Any]] = {}
    for override in overrides:
        group, _, member = override.partition("=")
        content = whole_member(group, member, files) if keys[group] == 1 else None
        if content is not None:
            whole[group] = content
    rest = tuple(override for override in overrides if override.partition("=")[0] not in whole)
    base = _composed(rest, config_name, (), True, files) if whole else None
    if base is None or not all(_is_content(base, group, files) for group in whole):
        return None
    found = OmegaConf.masked_copy(base, [str(key) for key in base if key != "hydra"])
    for group, content in whole.items():
        found[group] = content
    OmegaConf.set_struct(found, True)
    return found


def _is_content(base: DictConfig, group: str, files: object) -> bool:
    """Whether all of `group` is from the file of the member that `base` has, and nothing else wrote into it."""
    content = whole_member(group, str(base.hydra.runtime.choices.get(group)), files)
    return content is not None and OmegaConf.to_container(base[group]) == content


@lru_cache(maxsize=1024)
def whole_member(group: str, member: str, files: object = None) -> dict[str, Any] | None:
    """What `group=member` composes to, if its file says all of it: it has no defaults list and no package.

    Read once for as long as `files` (see `stamp`) are the same.
    """
    path = config_dir() / group / f"{member}.yaml"
    if not (group.isidentifier() and path.is_file()) or "@package" in path.read_text():
        return None
    content = load_file(path)
    return None if "defaults" in content else content


def stamp(roots: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """What changes whenever a YAML file below `roots` does."""
    found = []
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                if name.endswith((".yaml", ".yml")):
                    status = os.stat(os.path.join(folder, name))
                    found.append((os.path.join(folder, name), status.st_mtime_ns, status.st_size))
    return tuple(found)


def load_file(path: Path) -> dict[str, Any]:
    """The plain content of one YAML file, without defaults lists and with interpolations as they are written.

    Raises:
        ConfigError: the file is missing, no YAML, or holds no mapping.
    """
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, ValueError, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} cannot be read as a configuration: it holds no mapping")
    return {str(key): value for key, value in content.items()}


def reason(error: BaseException) -> str:
    """What Hydra's exception says, with its cause, without the advice that does not apply here."""
    text = str(error).split("\nConfig search path")[0].split("\nSee https://hydra.cc")[0].strip()
    cause = error.__cause__
    if cause is not None and str(cause) and str(cause) not in text:
        text += "\n" + str(cause).strip().splitlines()[0]
    return text or type(error).__name__


@contextmanager
def _hydra() -> Iterator[None]:
    """Hydra on our folder; afterwards it is as it was, be that inside `hydra.main` or not initialised."""
    outer = GlobalHydra.instance().hydra
    job_name = JobRuntime.instance().get("name") if outer else "train"
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), job_name=job_name, version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer
