"""Hydra's composition without its global state and with one kind of error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from reattend.config.paths import config_dir
from reattend.config.problems import ConfigError


def load(overrides: Sequence[str], config_name: str = "train", more: Sequence[Path] = ()) -> DictConfig:
    """Composes `config_name` with Hydra `overrides`, nothing resolved.

    Args:
        overrides: as on the command line, in Hydra's grammar.
        config_name: path below the folder of YAML files, without suffix.
        more: further folders to search.

    Raises:
        ConfigError: Hydra, OmegaConf or the YAML parser refused; with their reason in one message.
    """
    search = [f"hydra.searchpath=[{','.join(f'file://{path.absolute()}' for path in more)}]"] if more else []
    try:
        with _hydra():
            return hydra_compose(config_name, [*search, *overrides])
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(reason(error)) from error


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
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), job_name="train", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer
