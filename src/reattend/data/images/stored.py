"""A split of images where they lie: in files, shards or tables, or as arrays in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reattend.data.images.decoding import HEAD, TAIL, decode
from reattend.data.prepared.arrays import Prepared, Sequences
from reattend.errors import ReattendError


class Stored(ABC):
    """A split, image by image.

    Attributes:
        labels: class of each image (n,).
    """

    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """What a person finds the image by."""

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """The image.

        Raises:
            BadImageError: the file is no image, or not whole.
            ReattendError: the file cannot be read.
        """


class InMemory(Stored):
    """Arrays of pixels (n, S, S) or (n, S, S, 3), uint8."""

    def __init__(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        self.pixels = pixels
        self.labels = labels

    def name(self, index: int) -> str:
        """Its number."""
        return f"image {index}"

    def image(self, index: int) -> Image.Image:
        """Grey, or in RGB."""
        return Image.fromarray(self.pixels[index])


class Encoded(Stored):
    """Encoded images, listed in prepared arrays: a name and some numbers for each.

    Args:
        prepared: the arrays.
        split: of them.
        folder: that the names are in.
    """

    def __init__(self, prepared: Prepared, split: str, folder: Path) -> None:
        self.names, self.numbers = prepared.documents(split)
        self.labels = prepared.labels(split)
        self.folder = folder

    def name(self, index: int) -> str:
        """Its path in the set's folder."""
        return _of(self.names, index).tobytes().decode()

    def image(self, index: int) -> Image.Image:
        """In RGB."""
        return decode(self.read(index))

    def read(self, index: int) -> bytes:
        """The bytes of the file.

        Raises:
            ReattendError: they cannot be read.
        """
        try:
            return self._read(index)
        except OSError as error:
            raise ReattendError(
                f"{self.folder / self.name(index)} cannot be read: {error.strerror or error}. It was there when the "
                "data was prepared; if files have moved, prepare it again with scripts/prepare_data.py."
            ) from error

    def ends(self, index: int) -> tuple[bytes, bytes]:
        """The first 8 and the last 12 bytes."""
        content = self.read(index)
        return content[:HEAD], content[-TAIL:]

    @abstractmethod
    def _read(self, index: int) -> bytes:
        """The bytes, or OSError."""

    def _number(self, index: int) -> NDArray[np.int64]:
        return _of(self.numbers, index)


class Classes(Encoded):
    """Those images of another split that are of some classes.

    Args:
        whole: the other split.
        codes: new code of each class that is kept, by its old one.
    """

    def __init__(self, whole: Encoded, codes: Mapping[int, int]) -> None:
        self.whole = whole
        self.rows = np.flatnonzero(np.isin(whole.labels, list(codes)))
        self.labels = np.array([codes[int(label)] for label in whole.labels[self.rows]], dtype=np.int64)
        self.folder = whole.folder

    def name(self, index: int) -> str:
        """Its path in the set's folder."""
        return self.whole.name(int(self.rows[index]))

    def ends(self, index: int) -> tuple[bytes, bytes]:
        """The first 8 and the last 12 bytes."""
        return self.whole.ends(int(self.rows[index]))

    def _read(self, index: int) -> bytes:
        return self.whole._read(int(self.rows[index]))


@dataclass(frozen=True)
class OpenedImages:
    """A set that is ready to be read.

    Attributes:
        splits: "train" and "test".
        classes: their names, by code.
        checksum: SHA-256 of what changes numbers.
        origin: form that the images are in.
    """

    splits: Mapping[str, Stored]
    classes: tuple[str, ...]
    checksum: str
    origin: str

    @property
    def sizes(self) -> dict[str, int]:
        """Images of each split."""
        return {split: len(stored) for split, stored in self.splits.items()}


def _of(sequences: Sequences, index: int) -> NDArray[np.int64]:
    values: NDArray[np.int64] = sequences.tokens[sequences.offsets[index] : sequences.offsets[index + 1]]
    return values
