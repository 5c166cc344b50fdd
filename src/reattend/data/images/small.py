"""Fashion-MNIST and CIFAR-10 from torchvision's files, as arrays in memory: nothing has to be prepared."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reattend.data import network
from reattend.data.images.known import KNOWN
from reattend.data.images.stored import InMemory, OpenedImages
from reattend.data.lra.image import BATCHES, MD5, read_batch
from reattend.errors import ReattendError

IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_HOSTS = {
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "cifar10": "https://www.cs.toronto.edu",
}
_UNSIGNED_BYTES = 0x08


@dataclass(frozen=True)
class SmallSet:
    """One of the two sets.

    Attributes:
        name: "fashion_mnist" or "cifar10", which is also the form.
        root: folder of all data.
        complete: whether the files have to be those of the whole set.
    """

    name: str
    root: Path
    complete: bool

    def find(self) -> dict[str, Path]:
        """The files by their names, of the first folder that has one.

        Raises:
            ReattendError: none is there, or one is missing.
        """
        known = KNOWN[self.name]
        folders = [self.root / name for name in known.folders]
        for folder in folders:
            files = {name: path for name in self._names for path in _spelled(folder / name) if path.is_file()}
            if absent := [name for name in self._names if name not in files]:
                if files:
                    raise ReattendError(f"{folder} has no {' and no '.join(absent)}. {known.source}")
                continue
            return files
        wanted = "\n".join(f"  {folder}" for folder in folders)
        raise ReattendError(
            f"The data of {self.name} is not on this machine.\nWanted: {', '.join(self._names)} in one of\n{wanted}\n"
            f"{known.source}\nThen: python scripts/prepare_data.py task={known.task} data.root={self.root}\n"
            "Meanwhile the same task runs on a small generated stand-in: add data=standin."
        )

    def obtain(self) -> None:
        """Lets torchvision fetch the files, if its host can be reached."""
        if not network.reachable(_HOSTS[self.name]):
            return
        from torchvision.datasets import CIFAR10, FashionMNIST

        kind, folder = {"fashion_mnist": (FashionMNIST, self.root), "cifar10": (CIFAR10, self.root / "cifar10")}[
            self.name
        ]
        try:
            kind(str(folder), download=True)
        except (OSError, RuntimeError) as error:
            raise ReattendError(f"torchvision could not get {self.name}: {error}. {KNOWN[self.name].source}") from error

    def open(self) -> OpenedImages:
        """Reads both splits; the checksum is over pixels and classes, whatever the files are packed in.

        Raises:
            ReattendError: as `find`, or a file is damaged.
        """
        files = self.find()
        arrays = {split: self._read(split, files) for split in IDX}
        checksum = hashlib.sha256(self.name.encode())
        for split, (pixels, labels) in arrays.items():
            self._check(split, pixels, labels, files)
            checksum.update(repr((split, pixels.shape)).encode())
            checksum.update(pixels.data)
            checksum.update(labels.data)
        splits = {split: InMemory(pixels, labels) for split, (pixels, labels) in arrays.items()}
        return OpenedImages(splits, tuple(map(str, range(10))), checksum.hexdigest(), self.name)

    @property
    def _names(self) -> list[str]:
        return list(MD5) if self.name == "cifar10" else [name for pair in IDX.values() for name in pair]

    def _read(self, split: str, files: dict[str, Path]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        if self.name == "cifar10":
            batches = [read_batch(files[name], self.complete) for name in BATCHES[split]]
            images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
            return np.ascontiguousarray(images.transpose(0, 2, 3, 1)), labels
        pixels, classes = (read_idx(files[name]) for name in IDX[split])
        if pixels.ndim != 3 or pixels.shape[:1] != classes.shape or len(pixels) == 0:
            raise ReattendError(
                f"{files[IDX[split][0]]} has arrays {pixels.shape}, and {files[IDX[split][1]]} {classes.shape}: they "
                f"are not the images and classes of one set. {KNOWN[self.name].source}"
            )
        return pixels, classes.astype(np.int64)

    def _check(self, split: str, pixels: NDArray[np.uint8], labels: NDArray[np.int64], files: dict[str, Path]) -> None:
        folder = next(iter(files.values())).parent
        wanted = KNOWN[self.name].sizes[split]
        side = 28 if self.name == "fashion_mnist" else 32
        if labels.min() < 0 or labels.max() > 9 or pixels.shape[1:3] != (side, side):
            raise ReattendError(
                f"{folder}: {split} of {self.name} has images of {pixels.shape[1:]} and classes {labels.min()} to "
                f"{labels.max()}, not {side}x{side} and 0 to 9. {KNOWN[self.name].source}"
            )
        if self.complete and len(labels) != wanted:
            raise ReattendError(
                f"{folder}: {split} of {self.name} has {len(labels):,} images in place of {wanted:,}: the files are "
                f"not whole. {KNOWN[self.name].source}"
            )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of an idx file of bytes, packed by gzip or not: its magic number says its dimensions.

    Raises:
        ReattendError: it is damaged or of another type.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        zero, kind, dimensions = int.from_bytes(content[:2], "big"), content[2], content[3]
        shape = tuple(np.frombuffer(content, ">u4", dimensions, 4).tolist())
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        if zero or kind != _UNSIGNED_BYTES:
            raise ValueError(f"its magic number is {content[:4].hex()}")
        return values.reshape(shape)
    except (OSError, EOFError, zlib.error, IndexError, ValueError) as error:
        raise ReattendError(f"{path} is no whole idx file ({error}). Get it again.") from error


def _spelled(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + ".gz"), path
