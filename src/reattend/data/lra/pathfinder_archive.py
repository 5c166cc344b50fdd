"""Pathfinder of the LRA release: folders of PNG pictures with their metadata."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from reattend.data.lra.generated import in_order
from reattend.data.lra.pathfinder_drawing import Images
from reattend.data.lra.pathfinder_scenes import Integers
from reattend.errors import ReattendError
from reattend.seeding import derive

FOLDERS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}

_IMAGES_PER_BLOCK = 1000
# This one picture of the release has no content.
_KNOWN_EMPTY = {"pathfinder32/curv_baseline/imgs/0/sample_172.png"}


def archive_index(folder: str | Path) -> tuple[list[Path], Integers]:
    """Pictures and labels that the files in `<folder>/metadata` name, in the order of their numbers and lines.

    The folder is that of one difficulty, `lra_release/lra_release/pathfinder32/curv_contour_length_14` or one beside
    it. A metadata file, `0.npy` and so on, is text in spite of its name: each line has a folder, a file, the number of
    the picture in its file, the label (1 connected, 0 not), then options of the generator.

    Raises:
        ReattendError: no metadata are there, a line is not of that form, or a picture that it names is missing or has
            no content (except the one of which that is known of the release).
    """
    folder = Path(folder)
    files = sorted(folder.glob("metadata/*.npy"), key=lambda path: (len(path.stem), path.stem))
    if not files:
        raise ReattendError(
            f"{folder} is no Pathfinder folder of the LRA release: it has no metadata/*.npy. Wanted is the folder with "
            f"imgs and metadata in it, such as pathfinder32/{FOLDERS[14]}."
        )
    paths: list[Path] = []
    labels: list[int] = []
    for file in files:
        for number, line in enumerate(_lines(file), start=1):
            words = line.split()
            if len(words) < 4 or words[3] not in ("0", "1") or not _is_inside(words[0], words[1]):
                raise ReattendError(
                    f"{file}, line {number}: not a folder, a file, a number and a label of 0 or 1: '{line[:80]}'."
                )
            path = folder / words[0] / words[1]
            if _has_content(path):
                paths.append(path)
                labels.append(int(words[3]))
    return paths, np.asarray(labels, dtype=np.int64)


def split_archive(images: int) -> dict[str, Integers]:
    """Indices of the splits: 80, 10 and 10 % of a random order that is always the same.

    The followed code splits by an order that is not kept, so that its splits cannot be had again.
    """
    order = np.random.RandomState(derive(0, "pathfinder", "archive") % 2**32).permutation(images)
    train, validation, test = np.split(order, [images * 8 // 10, images * 9 // 10])
    return {"train": train, "validation": validation, "test": test}


def read_images(paths: Sequence[Path], size: int, workers: int | None = None) -> Iterator[Images]:
    """Pictures in blocks of up to 1,000, uint8 (n, size, size), in this order.

    Raises:
        ReattendError: a file is no whole grey-scale picture of that size.
    """
    blocks = [paths[start : start + _IMAGES_PER_BLOCK] for start in range(0, len(paths), _IMAGES_PER_BLOCK)]
    return in_order(functools.partial(_read_block, size=size), blocks, workers if len(blocks) > 1 else 1)


def _read_block(paths: Sequence[Path], size: int) -> Images:
    return np.stack([_read(path, size) for path in paths])


def _read(path: Path, size: int) -> Images:
    from PIL import Image

    try:
        with Image.open(path) as image:
            mode, found, picture = image.mode, image.size, np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise ReattendError(f"{path} is no whole picture ({error}). Unpack the archive again.") from error
    if mode != "L" or found != (size, size):
        raise ReattendError(
            f"{path} is {found[0]}x{found[1]} of mode {mode}, and {size}x{size} in 8-bit grey is wanted: "
            f"is this the folder of pathfinder{size}?"
        )
    return picture


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ReattendError(
            f"{file} cannot be read as text, which the metadata of the LRA release are in spite of their name: {error}."
        ) from error


def _is_inside(folder: str, name: str) -> bool:
    path = PurePosixPath(folder, name)
    return not path.is_absolute() and ".." not in path.parts


def _has_content(path: Path) -> bool:
    try:
        empty = os.stat(path).st_size == 0
    except OSError as error:
        raise ReattendError(
            f"{path} is missing ({error.strerror}), though the metadata name it. Unpack the archive again."
        ) from error
    if empty and "/".join(path.parts[-5:]) not in _KNOWN_EMPTY:
        raise ReattendError(f"{path} is empty. Unpack the archive again; has the disk room?")
    return not empty
