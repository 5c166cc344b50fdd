"""What the raw data of the five tasks have in common: where it lies, what is asked of it, what is said without it."""

from __future__ import annotations

import os
import shlex
import socket
import threading
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from reattend.config.overrides import override_text
from reattend.data.lra.arrays import Block, digest
from reattend.data.lra.generated import Progress
from reattend.errors import ReattendError

SPLITS = ("train", "validation", "test")
STORED_BYTES = 4096  # of each document, in the prepared arrays
RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
_PATIENCE = 1.5  # seconds
_OF_ALL = ("folder", "complete")  # fields that are no options


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


@dataclass(frozen=True)
class RawSet(RawFiles):
    """The raw files of one task, `<data.root>/lra/<name>`.

    Attributes:
        name: of the set.
        num_outputs, vocabulary, num_documents: classes, token ids with padding, documents of a sample.
        full_sizes: samples of each split of the whole set; a set without validation selects on test.
        switches: options that follow the fidelity, and so have no usual value.
        most_tokens: what is stored of a document at most; None where all is.
    """

    name: ClassVar[str]
    num_outputs: ClassVar[int]
    vocabulary: ClassVar[int]
    num_documents: ClassVar[int] = 1
    full_sizes: ClassVar[Mapping[str, int]]
    switches: ClassVar[tuple[str, ...]] = ()
    most_tokens: ClassVar[int | None] = None

    @property
    def pixels(self) -> int | None:
        """Tokens that every sample has, where samples are pictures."""
        return None

    def option_problems(self) -> list[str]:
        """Options that are right each by itself and wrong together."""
        return []

    def length_problems(self, max_length: int, *, whole: bool = False) -> list[str]:
        """Why samples cannot be read to `max_length` tokens; with `whole` also where rows of pictures would be lost."""
        told = f"task.data_options.max_length: {max_length:,} tokens of lra/{self.name}"
        if self.most_tokens is not None and max_length > self.most_tokens:
            return [f"{told}, of whose documents {self.most_tokens:,} bytes are stored: at most {self.most_tokens}"]
        if whole and self.pixels is not None and max_length < self.pixels:
            return [f"{told}, whose pictures have {self.pixels:,} pixels: at least {self.pixels}, or scale=quick"]
        return []

    def option_words(self) -> list[str]:
        """Options that are not the usual ones."""
        return [
            override_text(f"task.data_options.{option.name}", value)
            for option in fields(self)
            if option.name not in _OF_ALL
            and ((value := getattr(self, option.name)) != option.default or option.name in self.switches)
        ]

    @property
    def label(self) -> str:
        """As its task is called."""
        return f"lra/{self.name}"

    @property
    def task(self) -> str:
        """Its own."""
        return self.label

    @property
    def root(self) -> Path:
        """Above the folder of all five sets."""
        return self.folder.parents[1]

    @property
    def samples(self) -> Mapping[str, int]:
        """Of the whole set."""
        return self.full_sizes

    def shape(self, max_length: int) -> dict[str, int]:
        """What a backbone is built from."""
        return {
            "vocabulary": self.vocabulary,
            "num_documents": self.num_documents,
            "max_length": max_length,
            "num_outputs": self.num_outputs,
        }

    def check_size(self, split: str, found: int) -> None:
        """Refuses a split that is not whole.

        Raises:
            ReattendError: `found` samples are not those of the whole set.
        """
        if self.complete and found != self.full_sizes[split]:
            raise ReattendError(
                f"{self.folder}: {split} of {self.label} has {found:,} samples in place of "
                f"{self.full_sizes[split]:,}: the raw files are not whole. Get them again, then: {self.command}"
            )


def reachable(address: str) -> bool:
    """Whether the host of a URL, or the proxy for it, takes a connection within 1.5 seconds.

    Hub libraries retry for up to 45 seconds where no network is.
    """
    parts = urlsplit(urllib.request.getproxies().get(urlsplit(address).scheme, address))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    answer: list[bool] = []

    def connect() -> None:
        try:
            with socket.create_connection((parts.hostname or "", port), timeout=_PATIENCE):
                answer.append(True)
        except OSError:
            pass

    # In a thread, because looking a name up knows no limit of time.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(answer)
