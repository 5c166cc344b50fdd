"""Stand-ins: a small tree of JPEGs, and Fashion-MNIST and CIFAR-10 in their own files."""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reattend.data.images.small import IDX
from reattend.data.lra.image import FOLDER
from reattend.data.lra.standin import write_cifar
from reattend.data.prepared.standin_root import standin_root
from reattend.errors import ReattendError
from reattend.runs.files import write_bytes

CLASSES = ("n00000001", "n00000002", "n00000003", "n00000004", "n00000005", "n00000006")
TREE = {"train": 60, "test": 20}  # images of a class
FASHION = {"train": 512, "test": 128}
CIFAR = {"train": 640, "test": 128}
LIST = "imagenet100.txt"


def write_stand_in(name: str, root: Path) -> None:
    """Writes the files of a set's stand-in, unless they are there, whose rule is learned in some hundred steps.

    - imagenet-1k and imagenet-100, a tree of JPEGs of 64 to 96 pixels with six classes, 60 images of each to train and
      20 to test: stripes that lie or stand, of red, green or blue, with noise, so that flips, crops and stretching
      leave the class alone;
    - fashion_mnist: 512 + 128 images, class k has k + 1 lying stripes, at any phase, with noise;
    - cifar10: 640 + 128 images, class k all grey of level 25 k + 12, with noise.

    Raises:
        ReattendError: they cannot be written.
    """
    # A legacy generator, because NumPy keeps its stream the same for ever: the checksum is part of a run's identity.
    random = np.random.RandomState(zlib.crc32(f"images/{name}".encode()))
    folder = root / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if name == "cifar10":
            _write_cifar(folder, random)
        elif name == "fashion_mnist":
            _write_fashion(folder, random)
        else:
            _write_tree(folder, random)
            (root / LIST).write_text("".join(f"{name}\n" for name in CLASSES))
    except OSError as error:
        raise ReattendError(
            f"The stand-in of {name} cannot be written to {folder}: {error.strerror or error}. "
            "Set XDG_CACHE_HOME to a folder that can be written."
        ) from error


def rule_checksum(name: str) -> str:
    """SHA-256 of the set and of the rules' number, which stand for the images of a tree."""
    return hashlib.sha256(json.dumps([standin_root().name, name]).encode()).hexdigest()


def _write_tree(folder: Path, random: np.random.RandomState) -> None:
    for split, count in (("train", TREE["train"]), ("val", TREE["test"])):
        for code, name in enumerate(CLASSES):
            place = folder / split / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = _stripes(code % 2 == 0, code // 2, random)
                Image.fromarray(pixels).save(place / f"{name}_{number}.JPEG", quality=85)


def _stripes(lying: bool, channel: int, random: np.random.RandomState) -> NDArray[np.uint8]:
    height, width = random.randint(64, 97, 2)
    across = np.arange(height)[:, None] if lying else np.arange(width)[None]
    wave = np.cos(2 * np.pi * (across / random.uniform(8, 16) + random.uniform()))
    pixels = 90 + 12 * random.standard_normal((height, width, 3)) + 20 * wave[..., None]
    pixels[..., channel] += 60 + 30 * wave
    clipped: NDArray[np.uint8] = np.clip(pixels, 0, 255).astype(np.uint8)
    return clipped


def _write_fashion(folder: Path, random: np.random.RandomState) -> None:
    rows = np.arange(28) / 28
    for split, count in FASHION.items():
        labels = random.randint(0, 10, count)
        phases = random.uniform(size=(count, 1))
        waves = np.cos(2 * np.pi * ((labels[:, None] + 1) * rows + phases))
        pixels = 120 + 80 * waves[:, :, None] + 20 * random.standard_normal((count, 28, 28))
        for name, array in zip(IDX[split], (np.clip(pixels, 0, 255), labels), strict=True):
            path = folder / f"{name}.gz"
            content = gzip.compress(idx(array.astype(np.uint8)), mtime=0)
            if not (path.is_file() and path.read_bytes() == content):
                write_bytes(path, content)


def _write_cifar(folder: Path, random: np.random.RandomState) -> None:
    place = folder / FOLDER
    if place.is_dir():
        return
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        write_cifar(Path(temporary), random)
        with suppress(OSError):  # another process was faster
            (Path(temporary) / FOLDER).rename(place)


def idx(array: NDArray[np.uint8]) -> bytes:
    """An idx file of bytes."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.tobytes()
