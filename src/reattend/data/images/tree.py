"""Images as files in folders of their classes, as torchvision's ImageFolder reads them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from reattend.data.images.decoding import HEAD, TAIL
from reattend.data.images.encoded import EncodedFiles, block
from reattend.data.images.stored import Encoded
from reattend.data.prepared.arrays import Block, Prepared
from reattend.errors import ReattendError

# As torchvision has them.
_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_FOLDERS = {"train": "train", "test": "val"}
_THREADS = 16  # a look at a file is mostly waiting

Listing = dict[str, dict[str, list[tuple[str, int]]]]  # split, class: names and sizes


@dataclass(frozen=True)
class ImageTree(EncodedFiles):
    """`train/<class>/*.JPEG` and `val/<class>/*.JPEG`; codes are those of the sorted class names."""

    form: ClassVar[str] = "imagefolder"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """By the folder `train`, unless it is one of `datasets`."""
        return (folder / "train").is_dir() and not (folder / "dataset_dict.json").is_file()

    def sources(self) -> dict[str, Path]:
        """The two folders."""
        folders = {name: self.folder / name for name in _FOLDERS.values()}
        for name, path in folders.items():
            if not path.is_dir():
                raise ReattendError(f"{path} is missing, though {self.folder} has the other part. Put {name} there.")
        return folders

    def describe(self, sources: Mapping[str, Path]) -> dict[str, Any]:
        """Of each folder the number of files, their bytes and SHA-256 over names and sizes."""
        return {_FOLDERS[split]: _summary(classes) for split, classes in self._listing.items()}

    def classes(self, sources: Mapping[str, Path]) -> Sequence[str]:
        """Names of the folders."""
        train, test = (set(self._listing[split]) for split in ("train", "test"))
        for one, other, name, found in ((test, train, "train", "val"), (train, test, "val", "train")):
            if one - other:
                raise ReattendError(
                    f"{self.folder / name} has no folder for {_some(one - other)}, which {self.folder / found} has: "
                    "both need the same classes. Unpack the rest, or remove the folders that are too many."
                )
        empty = [name for name, files in self._listing["train"].items() if not files]
        if empty:
            raise ReattendError(
                f"There is no image in {_some({str(self.folder / 'train' / name) for name in empty})}. Unpack the rest "
                "of the archive there, or remove the folders."
            )
        return sorted(train)

    def blocks(self, split: str, sources: Mapping[str, Path]) -> Iterator[Block]:
        """Class by class, files by name."""
        for code, (name, files) in enumerate(self._listing[split].items()):
            if files:
                paths = [f"{_FOLDERS[split]}/{name}/{file}" for file, _ in files]
                yield block(paths, [[size] for _, size in files], [code] * len(files))

    def open_split(self, prepared: Prepared, split: str) -> Encoded:
        """The files."""
        return Files(prepared, split, self.folder)

    @cached_property
    def _listing(self) -> Listing:
        listing: Listing = {}
        with ThreadPoolExecutor(_THREADS) as pool:
            for split, path in zip(_FOLDERS, self.sources().values(), strict=True):
                names = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and entry.name[0] != ".")
                if not names:
                    raise _flat(path)
                listing[split] = dict(zip(names, pool.map(_files, (path / name for name in names)), strict=True))
        return listing


class Files(Encoded):
    """A file for each image."""

    def ends(self, index: int) -> tuple[bytes, bytes]:
        """The first 8 and the last 12 bytes."""
        path = self.folder / self.name(index)
        try:
            with path.open("rb", buffering=0) as file:
                head = file.read(HEAD)
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
                return head, file.read(TAIL)
        except OSError:
            return b"", b""  # reading the whole of it says why

    def _read(self, index: int) -> bytes:
        return (self.folder / self.name(index)).read_bytes()


def _files(folder: Path) -> list[tuple[str, int]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (entry.name, entry.stat().st_size)
                for entry in entries
                if entry.name.lower().endswith(_SUFFIXES) and entry.name[0] != "." and not entry.is_dir()
            )
    except OSError as error:
        # Of a link to nothing the link.
        raise ReattendError(f"{error.filename or folder} cannot be read: {error.strerror or error}.") from error


def _summary(classes: Mapping[str, Sequence[tuple[str, int]]]) -> dict[str, Any]:
    digest, number, size = hashlib.sha256(), 0, 0
    for name, files in classes.items():
        for file, length in files:
            digest.update(f"{name}/{file}\n{length}\n".encode())
            number, size = number + 1, size + length
    return {"files": number, "size": size, "sha256": digest.hexdigest()}


def _flat(path: Path) -> ReattendError:
    if not _files(path):
        return ReattendError(f"{path} has no folder of a class with images in it. Unpack the archive there.")
    return ReattendError(
        f"{path} has its images side by side and not in folders of their classes, as ImageNet's archive "
        "ILSVRC2012_img_val.tar unpacks. Sort them with soumith's valprep.sh in that folder, or let "
        "torchvision.datasets.ImageNet(<folder of the archives>, split='val') unpack it, which needs "
        "ILSVRC2012_devkit_t12.tar.gz beside it."
    )


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
