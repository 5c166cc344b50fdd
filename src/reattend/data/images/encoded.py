"""What the three forms of encoded images have in common: a list of them, prepared once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from reattend.data.images.stored import Encoded
from reattend.data.prepared.arrays import Block, Prepared
from reattend.data.prepared.raw_files import RawFiles

SPLITS = {"train": ("train",), "test": ("val", "validation", "test")}  # and how the forms may call them

Found = TypeVar("Found")


@dataclass(frozen=True)
class EncodedFiles(RawFiles):
    """Encoded images below `<data.root>/<name>`, in one form.

    The prepared arrays list them: their names, sizes and places, not their contents, of which there may be 150 GB. So
    the checksum is over names, sizes and classes.

    Attributes:
        name: of the folder.
        known_task: the task that learns from it.
        known: images of each split, as far as known.
        form: what the form is called.
    """

    name: str
    known_task: str
    known: Mapping[str, int]

    form: ClassVar[str]

    @classmethod
    @abstractmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether something of this form is there."""

    @property
    def label(self) -> str:
        """Its folder's name."""
        return self.name

    @property
    def task(self) -> str:
        """One that the set was made for."""
        return self.known_task

    @property
    def root(self) -> Path:
        """Above the folder."""
        return self.folder.parent

    @property
    def prepared(self) -> Path:
        """`<data.root>/prepared/<name>/<form>`: the folder itself may be a link to where nobody can write."""
        return self.root / "prepared" / self.name / self.reading

    @property
    def reading(self) -> str:
        """The form."""
        return self.form

    @property
    def samples(self) -> Mapping[str, int]:
        """As far as known; of a set of a person's own 0 images."""
        return {split: self.known.get(split, 0) for split in SPLITS}

    def facts(self, sources: Mapping[str, Path]) -> dict[str, Any]:
        """Also names of the classes."""
        return {**super().facts(sources), "classes": list(self.classes(sources))}

    @abstractmethod
    def classes(self, sources: Mapping[str, Path]) -> Sequence[str]:
        """Names of the classes, by code.

        Raises:
            ReattendError: the files are not as the form has them.
        """

    @abstractmethod
    def open_split(self, prepared: Prepared, split: str) -> Encoded:
        """The images that were listed.

        Raises:
            ReattendError: the files have gone.
        """


def first_of(names: Sequence[str], find: Callable[[str], list[Found]]) -> list[Found]:
    """What the first of a split's names finds: ImageNet's real test set, without labels, may lie beside "val"."""
    return next((found for name in names if (found := find(name))), [])


def block(names: Sequence[str], numbers: Sequence[Sequence[int]], labels: Sequence[int]) -> Block:
    """Lists some images: UTF-8 bytes of the names and as many numbers for each."""
    encoded = [name.encode() for name in names]
    return Block(
        (np.frombuffer(b"".join(encoded), np.uint8), np.asarray(numbers, np.int64).reshape(-1)),
        (np.array([len(name) for name in encoded], np.int64), np.array([len(row) for row in numbers], np.int64)),
        np.asarray(labels, np.int64),
    )
