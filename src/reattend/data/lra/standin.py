"""Stand-ins: tiny sets in the true raw formats, read and prepared by the real code."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reattend.data.lra.by_rule import ListOpsSet, PathfinderSet
from reattend.data.lra.generated import writing
from reattend.data.lra.image import FOLDER, MD5
from reattend.data.lra.listops import FILES as LISTOPS_FILES
from reattend.data.lra.listops import HEADER
from reattend.data.lra.pathfinder import GENERATED_FILES
from reattend.data.lra.pathfinder_archive import FOLDERS
from reattend.data.lra.raw import RawSet
from reattend.data.lra.retrieval import FILES as RETRIEVAL_FILES
from reattend.errors import ReattendError

_SIZES = {"train": 512, "validation": 128, "test": 128}
_WORDS = {  # by class: bytes of the first half of the alphabet, or of the second
    0: ("bad", "blame", "decade", "claim", "fake", "jail", "fade", "idea", "lame", "cliche", "ham", "gag"),
    1: ("story", "sunny", "worthy", "stout", "trust", "proust", "soon", "ripost", "your", "wry", "top", "sport"),
}


def write_stand_in(raw: RawSet) -> None:
    """Writes the raw files of a set's stand-in, whose rule is learned in some hundred steps.

    512 training, 128 validation and 128 test samples (text has no validation):
    - listops: nested lists of one operator alone, MIN or MAX, of 100 to 240 tokens with true answers;
    - text: reviews of 150 to 400 bytes of words from one half of the alphabet or the other, as `aclImdb` folder;
    - retrieval: the first paper has words of the first half; the second too if it is cited, else of the second half;
    - image: class k has the colour (25 k + 12) in all channels, with noise of standard deviation 6;
    - pathfinder: two dots in the upper quarter, with a line between them that is whole, or all but absent.

    Raises:
        ReattendError: the folder cannot be written.
    """
    # A legacy generator, because NumPy keeps its stream the same for ever: the checksum is part of a run's identity.
    random = np.random.RandomState(zlib.crc32(f"lra/{raw.name}".encode()))
    try:
        raw.folder.mkdir(parents=True, exist_ok=True)
        _WRITERS[raw.name](raw, random)
    except OSError as error:
        raise ReattendError(
            f"The stand-in of lra/{raw.name} cannot be written to {raw.folder}: {error.strerror or error}. "
            "Set XDG_CACHE_HOME to a folder that can be written."
        ) from error


def _write_listops(raw: RawSet, random: np.random.RandomState) -> None:
    assert isinstance(raw, ListOpsSet)
    raw.place.mkdir(exist_ok=True)
    for split, name in LISTOPS_FILES.items():
        lines = []
        for _ in range(_SIZES[split]):
            operator, apply = (("MIN", min), ("MAX", max))[random.randint(2)]
            text, value = _list(operator, apply, random.randint(100, 240), random)
            lines.append(f"{text}\t{value}\r\n")
        (raw.place / name).write_text(HEADER + "".join(lines), newline="")


def _list(
    operator: str, apply: Callable[[Sequence[int]], int], tokens: int, random: np.random.RandomState
) -> tuple[str, int]:
    """A list of short lists, of about so many operators and digits."""
    texts, values = [], []
    while tokens > 0:
        digits = random.randint(0, 10, random.randint(2, 6)).tolist()
        texts.append(_nested(operator, [str(digit) for digit in digits]))
        values.append(apply(digits))
        tokens -= 1 + len(digits)
    return _nested(operator, texts), apply(values)


def _nested(operator: str, arguments: Sequence[str]) -> str:
    return "( " * (len(arguments) + 1) + f"[{operator} " + "".join(f"{argument} ) " for argument in arguments) + "] )"


def _write_text(raw: RawSet, random: np.random.RandomState) -> None:
    for split in ("train", "test"):
        for label, name in enumerate(("neg", "pos")):
            place = raw.folder / "aclImdb" / split / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(_SIZES[split] // 2):
                (place / f"{number}_{1 + 9 * label}.txt").write_text(_words(label, random))


def _words(label: int, random: np.random.RandomState) -> str:
    length = random.randint(150, 400)
    return " ".join(random.choice(_WORDS[label], length // 5))


def _write_retrieval(raw: RawSet, random: np.random.RandomState) -> None:
    for split, name in RETRIEVAL_FILES.items():
        lines = []
        for number in range(_SIZES[split]):
            label = int(random.randint(2))
            lines.append(f"{label}.0\tA{number}\tB{number}\t{_words(0, random)}\t{_words(1 - label, random)}\n")
        (raw.folder / name).write_text("".join(lines))


def _write_image(raw: RawSet, random: np.random.RandomState) -> None:
    write_cifar(raw.folder, random)


def write_cifar(parent: Path, random: np.random.RandomState) -> None:
    """Writes the six files of CIFAR-10 with 128 images each, of which class k is all grey of level 25 k + 12."""
    folder = parent / FOLDER
    folder.mkdir(exist_ok=True)
    for name in MD5:
        labels = random.randint(0, 10, 128)
        values = 25.0 * labels[:, None] + 12.0 + 6.0 * random.standard_normal((len(labels), 3 * 32 * 32))
        batch = {
            b"batch_label": name.encode(),
            b"labels": labels.tolist(),
            b"data": np.clip(values, 0, 255).astype(np.uint8),
            b"filenames": [f"{number}.png".encode() for number in range(len(labels))],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def _write_pathfinder(raw: RawSet, random: np.random.RandomState) -> None:
    assert isinstance(raw, PathfinderSet)
    drawn = {split: _pictures(size, raw.resolution, random) for split, size in _SIZES.items()}
    if raw.images == "archive":
        pictures, labels = (np.concatenate(parts) for parts in zip(*drawn.values(), strict=True))
        _write_archive(raw.folder / f"pathfinder{raw.resolution}" / FOLDERS[raw.contour_length], pictures, labels)
        return
    with writing(raw.place, {"rule": "stand-in"}, GENERATED_FILES) as folder:
        for name, array in zip(GENERATED_FILES, (array for pair in drawn.values() for array in pair), strict=True):
            np.save(folder / name, array)


def _pictures(
    number: int, resolution: int, random: np.random.RandomState
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    labels = random.randint(0, 2, number).astype(np.int64)
    pictures = np.zeros((number, 32, 32), dtype=np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        row, left, right = random.randint(2, 6), random.randint(2, 8), random.randint(24, 30)
        for column in (left, right):
            picture[row - 1 : row + 2, column - 1 : column + 2] = 255
        picture[row, left : right if label else left + 5] = 200
    return np.kron(pictures, np.ones((1, resolution // 32, resolution // 32), dtype=np.uint8)), labels


def _write_archive(folder: Path, pictures: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    from PIL import Image

    (folder / "imgs" / "0").mkdir(parents=True, exist_ok=True)
    (folder / "metadata").mkdir(exist_ok=True)
    lines = []
    for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        Image.fromarray(picture).save(folder / "imgs" / "0" / f"sample_{number}.png")
        lines.append(f"imgs/0 sample_{number}.png {number} {label}\n")
    (folder / "metadata" / "0.npy").write_text("".join(lines))


_WRITERS: dict[str, Callable[[RawSet, np.random.RandomState], None]] = {
    "listops": _write_listops,
    "text": _write_text,
    "retrieval": _write_retrieval,
    "image": _write_image,
    "pathfinder": _write_pathfinder,
}
