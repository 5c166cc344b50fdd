"""What raw data has in common: where it lies, what is asked of it, what is said without it."""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reattend.config.overrides import override_text
from reattend.data.prepared.arrays import Block, digest
from reattend.errors import ReattendError

SPLITS = ("train", "validation", "test")
Progress = Callable[[int, int], None]  # takes the number of samples done, and of all


@dataclass(frozen=True)
class RawFiles(ABC):
    """The raw files of a data set in one folder, and how they become prepared arrays.

    Attributes:
        folder: where they are.
        complete: whether the files have to be those of the whole set; False for a stand-in.
    """

    folder: Path
    complete: bool

    @property
    @abstractmethod
    def label(self) -> str:
        """What the set is called in messages, such as "lra/text"."""

    @property
    @abstractmethod
    def task(self) -> str:
        """A task that learns from the set, for commands; further overrides after spaces."""

    @property
    @abstractmethod
    def root(self) -> Path:
        """The folder of all data that `folder` is in."""

    @property
    @abstractmethod
    def reading(self) -> str:
        """Name of what is prepared, where a set can be read in several ways."""

    @property
    @abstractmethod
    def samples(self) -> Mapping[str, int]:
        """Samples of each split, as far as they are known before the files are read."""

    @abstractmethod
    def sources(self) -> dict[str, Path]:
        """The raw files or folders, by their names in the manifest.

        Raises:
            ReattendError: they are not there; the message says where from a person can get them.
        """

    @abstractmethod
    def blocks(self, split: str, sources: Mapping[str, Path]) -> Iterator[Block]:
        """All samples of a split.

        Raises:
            ReattendError: a file is damaged or malformed.
        """

    def obtainable(self) -> bool:
        """Whether this machine can generate or fetch the raw files."""
        return False

    def obtain(self, progress: Progress | None = None) -> None:
        """Generates or fetches the raw files; only if they are `obtainable`."""
        raise NotImplementedError

    def unfit(self) -> list[str]:
        """Names of raw files that were generated here and are not any more as they were made."""
        return []

    def describe(self, sources: Mapping[str, Path]) -> dict[str, Any]:
        """What the manifest says of the raw files; files of which it says something else have changed."""
        return {name: digest(path) for name, path in sources.items()}

    def facts(self, sources: Mapping[str, Path]) -> dict[str, Any]:
        """What the manifest says besides, with `set` and `reading`, which are part of the checksum."""
        return {"set": self.label.rpartition("/")[2], "reading": self.reading}

    @property
    def prepared(self) -> Path:
        """Folder of the prepared arrays."""
        return self.folder / "prepared" / self.reading

    @property
    def command(self) -> str:
        """What prepares the set in this reading, in this folder."""
        words = [*f"task={self.task}".split(), *self.option_words()]
        usual = Path(os.environ.get("REATTEND_DATA") or "data").expanduser().absolute()
        if self.root != usual:
            words.append(override_text("data.root", self.root))
        return " ".join(["python scripts/prepare_data.py", *map(shlex.quote, words)])

    def option_words(self) -> list[str]:
        """Overrides that choose this reading."""
        return []

    def missing(self, wanted: Iterable[str], source: str) -> ReattendError:
        """What is said when raw files are not there.

        Args:
            wanted: the files, one a line, with their places.
            source: where they come from, and how large they are.
        """
        lines = "\n".join(f"  {line}" for line in wanted)
        return ReattendError(
            f"The data of {self.label} is not on this machine.\nWanted:\n{lines}\n{source}\n"
            f"Then: {self.command}\nMeanwhile the same task runs on a small generated stand-in: add data=standin."
        )
