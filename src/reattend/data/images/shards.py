"""Images in tar archives, as webdataset writes them, read at their places without unpacking."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from reattend.data.images.decoding import HEAD, TAIL
from reattend.data.images.encoded import SPLITS, EncodedFiles, block, first_of
from reattend.data.images.stored import Encoded
from reattend.data.prepared.arrays import Block, Prepared
from reattend.errors import ReattendError

_FOLDER = "shards"
_SUFFIXES = ("jpg", "jpeg", "png")


@dataclass(frozen=True)
class TarShards(EncodedFiles):
    """`shards/train-*.tar` and `shards/val-*.tar` with members `<key>.jpg` and `<key>.cls`, the class as a number."""

    form: ClassVar[str] = "tar_shards"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """By the archives."""
        return any((folder / _FOLDER).glob("*.tar"))

    def sources(self) -> dict[str, Path]:
        """All archives."""
        found = {path.name: path for paths in self._shards.values() for path in paths}
        for split, names in SPLITS.items():
            if not self._shards[split]:
                raise ReattendError(
                    f"{self.folder / _FOLDER} has no {' or '.join(f'{name}-*.tar' for name in names)}: "
                    f"no shard to {'train' if split == 'train' else 'test'} on."
                )
        return found

    def describe(self, sources: Mapping[str, Path]) -> dict[str, Any]:
        """Size and time of each archive."""
        return {name: {"size": path.stat().st_size, "time": path.stat().st_mtime_ns} for name, path in sources.items()}

    def classes(self, sources: Mapping[str, Path]) -> Sequence[str]:
        """The numbers up to the largest of training."""
        highest = max((label for path in self._shards["train"] for _, _, label in self._index(path)), default=-1)
        return [str(number) for number in range(highest + 1)]

    def blocks(self, split: str, sources: Mapping[str, Path]) -> Iterator[Block]:
        """Archive by archive, in their order."""
        for path in self._shards[split]:
            index = self._index(path)
            if index:
                names, places, labels = zip(*index, strict=True)
                yield block([f"{_FOLDER}/{path.name}/{name}" for name in names], places, labels)

    def open_split(self, prepared: Prepared, split: str) -> Encoded:
        """The members."""
        return Members(prepared, split, self.folder)

    @cached_property
    def _shards(self) -> dict[str, list[Path]]:
        folder = self.folder / _FOLDER
        return {
            split: first_of(names, lambda name: sorted(folder.glob(f"{name}-*.tar"))) for split, names in SPLITS.items()
        }

    def _index(self, path: Path) -> list[tuple[str, tuple[int, int], int]]:
        """Name, (offset, size) and class of each image of an archive."""
        if path not in self._indexed:
            self._indexed[path] = _members(path)
        return self._indexed[path]

    @cached_property
    def _indexed(self) -> dict[Path, list[tuple[str, tuple[int, int], int]]]:
        return {}


class Members(Encoded):
    """A range of bytes of an archive for each image."""

    def __init__(self, prepared: Prepared, split: str, folder: Path) -> None:
        super().__init__(prepared, split, folder)
        self.handles: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "handles": {}}

    def ends(self, index: int) -> tuple[bytes, bytes]:
        """The first 8 and the last 12 bytes."""
        offset, size = self._number(index).tolist()
        try:
            handle = self._handle(index)
        except OSError:
            return b"", b""  # reading the whole of it says why
        length = min(TAIL, size)
        return os.pread(handle, min(HEAD, size), offset), os.pread(handle, length, offset + size - length)

    def _read(self, index: int) -> bytes:
        offset, size = self._number(index).tolist()
        return os.pread(self._handle(index), size, offset)

    def _handle(self, index: int) -> int:
        # Read by position, so that processes that were forked may share a handle.
        shard = self.name(index).partition(".tar/")[0] + ".tar"
        if shard not in self.handles:
            self.handles[shard] = os.open(self.folder / shard, os.O_RDONLY)
        return self.handles[shard]


def _members(path: Path) -> list[tuple[str, tuple[int, int], int]]:
    images: dict[str, tuple[str, tuple[int, int]]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                key, _, suffix = member.name.rpartition(".")
                if not member.isfile():
                    continue
                if suffix.lower() in _SUFFIXES:
                    images[key] = (member.name, (member.offset_data, member.size))
                elif suffix == "cls":
                    content = archive.extractfile(member)
                    labels[key] = int(content.read()) if content else -1
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise ReattendError(f"{path} is no whole tar archive of images and classes: {error}. Get it again.") from error
    for key in images.keys() ^ labels.keys():
        raise ReattendError(f"{path}: {key} has no {'class (.cls)' if key in images else 'image'}. Get it again.")
    if any(label < 0 for label in labels.values()):
        raise ReattendError(f"{path}: classes have to be numbers from 0 on, and one is negative.")
    return [(name, place, labels[key]) for key, (name, place) in images.items()]
