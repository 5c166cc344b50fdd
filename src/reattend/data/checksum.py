"""The checksum of a run's data, without reading the data itself."""

from __future__ import annotations

from reattend.config.schema import RunConfig
from reattend.data.source import source_of


def data_checksum(config: RunConfig) -> str:
    """What the data module of `config` would give as its `checksum`.

    Raises:
        ReattendError: the data is not on this machine; the message says how to get it.
    """
    return source_of(config).checksum()
