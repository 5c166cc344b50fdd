"""Texts as rows of tokens, and those whose tokens are bytes: enwik8, and any file that a person has."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from reattend.data.language.standin import BYTES, write_text
from reattend.errors import ReattendError
from reattend.runs.files import replacing

BYTE_VALUES = 256
ENWIK8_BYTES = 100_000_000
ENWIK8_SHA1 = "57b8363b814821dc9d47aa4d41f58733519076b2"  # as published beside the file
_TRAIN, _VALIDATION = 0.9, 0.05
_PIECE = 1 << 24


@dataclass(frozen=True)
class OpenedText:
    """Tokens of each split, memory-mapped, a checksum over all of them, and the number of token ids."""

    splits: Mapping[str, NDArray[Any]]
    checksum: str
    vocabulary: int


class Text(ABC):
    """A text as tokens, of which each split is a row; a small generated one in its place if it is a stand-in.

    `start` is that of its `TokenBlocks`.
    """

    standin: bool
    start: ClassVar[int | None] = None

    @abstractmethod
    def find(self) -> Path:
        """Where it is.

        Raises:
            ReattendError: it is not there; the message says how to get it.
        """

    @abstractmethod
    def open(self) -> OpenedText:
        """Its tokens.

        Raises:
            ReattendError: it is missing, damaged or not prepared.
        """

    @abstractmethod
    def known(self) -> tuple[int, dict[str, int]] | None:
        """Number of token ids, and tokens of each split, as far as they are known without it."""

    def shape(self, vocabulary: int, max_length: int) -> dict[str, int]:
        """What a decoder of its pieces is built from, told here as `start_token` and what `x` holds go together."""
        shape = {"vocabulary": vocabulary, "max_length": max_length, "num_outputs": vocabulary}
        return shape if self.start is None else shape | {"start_token": self.start}

    @abstractmethod
    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Unpacks, converts and verifies it, as far as each is needed.

        Raises:
            ReattendError: it is missing or another one.
        """


@dataclass(frozen=True)
class Bytes(Text):
    """A text, cut by byte into the first 90 % for training, 5 % for validation and 5 % for test, as enwik8 always is.

    Every byte counts, line breaks among them.

    Attributes:
        name: "enwik8" or "file".
        root: folder of all data.
        file: a person's own, for "file".
        standin: whether a small generated text takes its place.
    """

    name: str
    root: Path
    file: Path | None
    standin: bool

    def find(self) -> Path:
        """The file."""
        if self.standin:
            return write_text(self.name)
        if self.name == "file":
            if self.file is None:
                raise ReattendError("Which text? task.data_options.file=<any file>; its bytes are the characters.")
            if not self.file.is_file():
                what = "it is a folder" if self.file.is_dir() else "there is no such file"
                raise ReattendError(f"task.data_options.file={self.file}: {what}; any file will do, by its bytes.")
            return self.file
        for path in (self._place, self.root / "enwik8"):
            if path.is_file():
                return path
        packed = " It lies there packed: the next command unpacks it." if self._packed() else ""
        raise ReattendError(
            f"The data of enwik8 is not on this machine.{packed}\nWanted: {self._place}, or enwik8.zip beside it\n"
            "Source: http://mattmahoney.net/dc/enwik8.zip (36 MB)\n"
            f"Then: python scripts/prepare_data.py task=char_lm/enwik8 data.root={self.root}\n"
            "Meanwhile the same task runs on a small generated stand-in: add data=standin."
        )

    def open(self) -> OpenedText:
        """Maps the file into memory."""
        path = self.find()
        size = path.stat().st_size
        if self.name == "enwik8" and not self.standin and size < ENWIK8_BYTES:
            raise ReattendError(
                f"{path} has {size:,} bytes in place of {ENWIK8_BYTES:,}: it is not whole. Get it again."
            )
        if size < 1000:
            raise ReattendError(f"{path} has {size} bytes: a text of at least 1,000 is wanted.")
        used = ENWIK8_BYTES if self.name == "enwik8" and not self.standin else size
        text: NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r", shape=(used,))
        places = cut(used)
        splits = {split: text[start:end] for split, (start, end) in places.items()}
        return OpenedText(splits, _digest(text, "sha256"), BYTE_VALUES)

    def known(self) -> tuple[int, dict[str, int]] | None:
        """Of enwik8 at any time, of a file if it is here."""
        size = BYTES if self.standin else ENWIK8_BYTES
        if self.name == "file" and not self.standin:
            try:
                size = self.find().stat().st_size
            except ReattendError:
                return None
        return BYTE_VALUES, {split: end - start for split, (start, end) in cut(size).items()}

    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Unpacks enwik8 and compares its checksum."""
        packed = self._packed()
        if packed is not None and not self._place.is_file():
            self._unpack(packed)
        opened = self.open()
        if self.name == "enwik8" and not self.standin:
            whole = np.memmap(self.find(), np.uint8, mode="r", shape=(ENWIK8_BYTES,))
            if _digest(whole, "sha1") != ENWIK8_SHA1:
                raise ReattendError(f"{self.find()} is not enwik8: its SHA-1 is not {ENWIK8_SHA1}. Get it again.")
        told = ", ".join(f"{split} {len(part):,}" for split, part in opened.splits.items())
        say(f"{self.name}: bytes of {told}, {self.find()}")

    @property
    def _place(self) -> Path:
        return self.root / "enwik8" / "enwik8"

    def _packed(self) -> Path | None:
        if self.standin or self.name != "enwik8":
            return None
        places = [self.root / "enwik8" / "enwik8.zip", self.root / "enwik8.zip"]
        return next((path for path in places if path.is_file()), None)

    def _unpack(self, packed: Path) -> None:
        try:
            self._place.parent.mkdir(parents=True, exist_ok=True)
            with (
                zipfile.ZipFile(packed) as archive,
                archive.open("enwik8") as source,
                replacing(self._place) as temporary,
                temporary.open("wb") as target,
            ):
                shutil.copyfileobj(source, target, _PIECE)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise ReattendError(f"{packed} cannot be unpacked ({error}). Get it again.") from error


def cut(size: int) -> dict[str, tuple[int, int]]:
    """Where each split of so many bytes begins and ends."""
    first, second = round(size * _TRAIN), round(size * (_TRAIN + _VALIDATION))
    return {"train": (0, first), "validation": (first, second), "test": (second, size)}


def pieces(tokens: int, length: int, stride: int) -> int:
    """Number of pieces of `length` that begin every `stride` tokens and reach every token."""
    return 1 + max(0, -(-(tokens - length) // stride))


def _digest(values: NDArray[Any], method: str) -> str:
    digest = hashlib.new(method)
    for start in range(0, len(values), _PIECE):
        digest.update(values[start : start + _PIECE].data)
    return digest.hexdigest()
