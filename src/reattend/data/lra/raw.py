"""What the raw data of the five tasks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from reattend.config.overrides import override_text
from reattend.data.prepared.raw_files import RawFiles
from reattend.errors import ReattendError

STORED_BYTES = 4096  # of each document, in the prepared arrays
RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
_OF_ALL = ("folder", "complete")  # fields that are no options


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
