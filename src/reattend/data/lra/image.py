"""Image: CIFAR-10 in grey (Krizhevsky, 2009), pixel by pixel."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from reattend.data import network
from reattend.data.lra.raw import RawSet
from reattend.data.prepared.arrays import Block
from reattend.data.prepared.raw_files import Progress
from reattend.errors import ReattendError

FOLDER, _ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
_ADDRESS = f"https://www.cs.toronto.edu/~kriz/{_ARCHIVE}"
SOURCE = (
    f"Source: {_ADDRESS} (170 MB; unpack it there, or put the archive itself there). With a network the command below "
    "fetches it by torchvision."
)
BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
# As torchvision.datasets.CIFAR10 has them.
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_SIDE = 32
_HELD_OUT = 0.1
_WEIGHTS = np.array([0.2989, 0.5870, 0.1140], dtype=np.float32)


@dataclass(frozen=True)
class ImageSet(RawSet):
    """CIFAR-10 from torchvision's files `cifar-10-batches-py`, in grey: token g is grey level g, so black is 0.

    The last tenth of the training files' images is the development set; the followed code takes the last tenth in the
    order of TensorFlow Datasets, which is another one.
    """

    name: ClassVar[str] = "image"
    num_outputs: ClassVar[int] = 10
    vocabulary: ClassVar[int] = 256
    full_sizes: ClassVar[Mapping[str, int]] = {"train": 45_000, "validation": 5_000, "test": 10_000}

    @property
    def pixels(self) -> int:
        """Of an image."""
        return _SIDE * _SIDE

    @property
    def reading(self) -> str:
        """One reading."""
        return "grey"

    def sources(self) -> dict[str, Path]:
        """The six files."""
        folder = self.folder / FOLDER
        files = {name: folder / name for name in MD5}
        absent = [str(path) for path in files.values() if not path.is_file()]
        if absent:
            raise self.missing(absent, SOURCE)
        return files

    def obtainable(self) -> bool:
        """If the archive is there, or its host answers."""
        return (self.folder / _ARCHIVE).is_file() or network.reachable(_ADDRESS)

    def obtain(self, progress: Progress | None = None) -> None:
        """Unpacks the archive if it is there, else lets torchvision fetch it."""
        archive = self.folder / _ARCHIVE
        if archive.is_file():
            try:
                with tarfile.open(archive) as packed:
                    packed.extractall(self.folder, filter="data")
            except (tarfile.TarError, EOFError, OSError) as error:
                raise ReattendError(f"{archive} cannot be unpacked: {error}. Get it again: {_ADDRESS}") from error
        else:
            from torchvision.datasets import CIFAR10

            try:
                CIFAR10(str(self.folder), download=True)
            except (OSError, RuntimeError) as error:
                raise ReattendError(f"torchvision could not get CIFAR-10: {error}. {SOURCE}") from error

    def blocks(self, split: str, sources: Mapping[str, Path]) -> Iterator[Block]:
        """Images of a split, row by row from the top left."""
        names = BATCHES["test" if split == "test" else "train"]
        images, labels = zip(*(read_batch(sources[name], self.complete) for name in names), strict=True)
        tokens, classes = grey(np.concatenate(images)), np.concatenate(labels)
        if split != "test":
            kept = len(classes) - round(_HELD_OUT * len(classes))
            part = slice(kept) if split == "train" else slice(kept, None)
            tokens, classes = tokens[part], classes[part]
        self.check_size(split, len(classes))
        yield Block((tokens.reshape(-1),), (np.full(len(classes), self.pixels),), classes)


def read_batch(path: Path, complete: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and classes (n,) of a file of CIFAR-10, which is unpickled without running code.

    Raises:
        ReattendError: it is damaged, or, where the whole set is wanted, not the file of its name.
    """
    content = path.read_bytes()
    if complete and hashlib.md5(content, usedforsecurity=False).hexdigest() != MD5[path.name]:
        raise ReattendError(f"{path} is damaged: its MD5 is not {MD5[path.name]}. Get it again: {_ADDRESS}")
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        images = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, _SIDE, _SIDE)
        labels = np.asarray(batch[b"labels"], np.int64)
        if len(labels) != len(images):
            raise ValueError(f"{len(images)} images and {len(labels)} labels")
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReattendError(f"{path} is no batch of CIFAR-10 ({error}). Get it again: {_ADDRESS}") from error
    return images, labels


def grey(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Grey levels (n, 32, 32) of images (n, 3, 32, 32) as TensorFlow's `rgb_to_grayscale` gives them for bytes.

    floor(255.5 (0.2989 r + 0.5870 g + 0.1140 b)) with r, g, b in [0, 1], in float32.
    """
    scaled = images.astype(np.float32) * np.float32(1.0 / 255.0)
    level = np.einsum("nchw,c->nhw", scaled, _WEIGHTS) * np.float32(255.5)
    levels: NDArray[np.uint8] = level.astype(np.uint8)
    return levels


class _ArraysOnly(pickle.Unpickler):
    """Unpickles dictionaries, lists, numbers, bytes and NumPy arrays; a pickle may otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        arrays = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
        if module in arrays and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")
