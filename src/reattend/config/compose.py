"""From a command line to a composed configuration."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from reattend.config.check import check_overrides
from reattend.config.loader import load
from reattend.config.overrides import normalise_overrides, written_out
from reattend.config.problems import ConfigError, refuse


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """The configuration that `python train.py *overrides` would run, interpolations unresolved.

    Works inside `hydra.main` too, and as often as wanted.

    Raises:
        ConfigError: with every mistake of the overrides, or with Hydra's reason.
    """
    wanted = normalise_overrides(written_out(overrides))
    try:
        return load(wanted)
    except ConfigError as error:
        check_overrides(wanted)
        refuse([str(error)])
        raise
