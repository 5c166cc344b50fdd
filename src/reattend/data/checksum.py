"""The checksum of a run's data, without reading the data itself."""

from __future__ import annotations

from functools import cache

from reattend.config.schema import RunConfig
from reattend.data.archive import SeriesFiles, locate
from reattend.data.standin import stand_in


def data_checksum(config: RunConfig) -> str:
    """What the data module of `config` would give as its `checksum`.

    Raises:
        ReattendError: the data is not on this machine; the message says how to get it.
    """
    task = config.task
    standin = config.data.name == "standin"
    files = stand_in(task.dataset) if standin else locate(task.dataset, str(task.archive), config.data.root)
    stamps = tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in (files.train, files.test))
    return _checksum(files, stamps)


@cache
def _checksum(files: SeriesFiles, stamps: tuple[tuple[int, int], ...]) -> str:
    """`stamps` are size and time of each file: one that changes is read again."""
    return files.checksum()
