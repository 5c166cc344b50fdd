"""From a run's configuration to its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import nn

from reattend.config.instantiate import build, build_mixer_factory
from reattend.config.schema import RunConfig


def build_backbone(run: RunConfig, shape: Mapping[str, int]) -> nn.Module:
    """The run's backbone with the run's attention in every layer, for data of `shape`.

    Args:
        run: the checked configuration.
        shape: what the data says of itself (`num_channels`, `max_length`, `num_outputs` for time series).
    """
    return cast(nn.Module, build(run.backbone.target, build_mixer_factory(run), **shape, **run.backbone.options))
