"""The time-series sets as a data source: two files each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from reattend.config.schema import RunConfig
from reattend.data.archive import SeriesFiles, locate
from reattend.data.checks import FileFacts, check_known, check_pair
from reattend.data.known_sets import KNOWN_SETS
from reattend.data.source import DataFacts, DataSource
from reattend.data.standin import stand_in
from reattend.data.ts_format import read_ts


@dataclass(frozen=True)
class SeriesSource(DataSource):
    """A set of the UEA, UCR or TSER archive, or its stand-in."""

    dataset: str | None
    archive: str
    root: str
    standin: bool
    held_out: float

    @classmethod
    def from_config(cls, config: RunConfig) -> SeriesSource:
        """The set of the task."""
        protocol = config.protocol
        return cls(
            config.task.dataset,
            str(config.task.archive),
            config.data.root,
            config.data.name == "standin",
            protocol.validation_fraction if protocol.selection == "validation" else 0.0,
        )

    @staticmethod
    def options(config: RunConfig) -> dict[str, Any]:
        """The archive."""
        return {"archive": config.task.archive}

    def require(self) -> None:
        """Finds both files."""
        self._files()

    def checksum(self) -> str:
        """SHA-256 over both files."""
        files = self._files()
        stamps = tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in (files.train, files.test))
        return _checksum(files, stamps)

    def facts(self) -> DataFacts | None:
        """What is known of the archive; None for other sets, and for stand-ins, which are shorter."""
        known = KNOWN_SETS.get(self.dataset or "")
        if known is None or self.standin:
            return None
        train, test = known.cases
        held = round(train * self.held_out)
        return DataFacts(
            {"num_channels": known.channels, "max_length": known.length, "num_outputs": len(known.class_labels) or 1},
            {"train": train - held, "validation": held, "test": test},
        )

    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Reads both files, as nothing has to be converted."""
        files = self._files()
        train, test = (FileFacts.of(read_ts(path)) for path in (files.train, files.test))
        check_pair(train, test)
        if not self.standin:
            check_known(files.dataset, train, test)
        say(f"{self.dataset}: {train.cases} + {test.cases} series, from {files.origin}, {files.train}")

    def _files(self) -> SeriesFiles:
        return stand_in(self.dataset) if self.standin else locate(self.dataset, self.archive, self.root)


@cache
def _checksum(files: SeriesFiles, stamps: tuple[tuple[int, int], ...]) -> str:
    """`stamps` are size and time of each file: one that changes is read again."""
    return files.checksum()
