"""What a run's data says of itself before it is read: one class for each kind of data module, without torch."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from reattend.config.schema import RunConfig
from reattend.errors import ReattendError

# By the data modules' paths and not on the classes, since to import those takes seconds, torch and Lightning.
SOURCES = {
    "reattend.data.TimeSeriesData": "reattend.data.series_source.SeriesSource",
    "reattend.data.LRAData": "reattend.data.lra.source.LRASource",
    "reattend.data.TextData": "reattend.data.language.source.TextSource",
    "reattend.data.ImageData": "reattend.data.images.source.ImageSource",
}


@dataclass(frozen=True)
class DataFacts:
    """`shape` is what a backbone is built from, `sizes` the number of samples of "train", "validation" and "test"."""

    shape: Mapping[str, int]
    sizes: Mapping[str, int]


class DataSource(ABC):
    """The data of a configuration; making one reads nothing and fails for no missing file."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: RunConfig) -> Self:
        """The data that `config` names.

        Raises:
            ReattendError: there is no such data set.
        """

    @staticmethod
    @abstractmethod
    def options(config: RunConfig) -> dict[str, Any]:
        """What the data module takes besides what every one takes."""

    @staticmethod
    def forms(config: RunConfig) -> tuple[str, ...]:
        """The forms of test that runs report: "test", and those of the data module's `further_tests`."""
        return ("test",)

    @abstractmethod
    def require(self) -> None:
        """Returns if the data is there.

        Raises:
            ReattendError: it is not; the message says how to get it.
        """

    @abstractmethod
    def checksum(self) -> str:
        """What the data module would give as its `checksum`.

        Raises:
            ReattendError: as `require`.
        """

    @abstractmethod
    def facts(self) -> DataFacts | None:
        """Shapes and sizes, if they are known without reading the data."""

    @abstractmethod
    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Gets, generates, verifies and converts the data, as far as each is needed.

        Args:
            say: takes lines for the person.
            progress: takes the number of samples done and in all.

        Raises:
            ReattendError: as `require`, or files are damaged.
        """


def source_class(target: str) -> type[DataSource]:
    """The source behind a data module's dotted path.

    Raises:
        ReattendError: it has none.
    """
    if target not in SOURCES:
        raise ReattendError(f"task.data_target: {target} has no data source. Those that have: {', '.join(SOURCES)}.")
    module, _, name = SOURCES[target].rpartition(".")
    kind: type[DataSource] = getattr(importlib.import_module(module), name)
    return kind


def source_of(config: RunConfig) -> DataSource:
    """The source of the data of `config`.

    Raises:
        ReattendError: there is no such data set.
    """
    return source_class(config.task.data_target).from_config(config)
