"""What `scripts/prepare_data.py` says of a set of images: classes, images of each, and files that are no images."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from reattend.data.images.decoding import BadImageError, decode, looks_whole
from reattend.data.images.sets import ImageSet
from reattend.data.images.stored import Encoded, OpenedImages, Stored
from reattend.errors import ReattendError

_THREADS = 16  # a look at a file is mostly waiting
_CHUNK = 4096
_SHOWN = 20


def check(
    images: ImageSet, opened: OpenedImages, say: Callable[[str], None], progress: Callable[[int, int], None]
) -> None:
    """Reports on an opened set.

    Other numbers of images than are known are told, and so is each file that is no image; both do no harm to a run.

    Raises:
        ReattendError: the number of classes is not that of the set, or a class has no image to train on.
    """
    known, classes = images.known, len(opened.classes)
    if known and classes != known.classes:
        raise ReattendError(
            f"{images.name} has {known.classes} classes, and {classes} are here: {', '.join(opened.classes[:3])}, ... "
            "Unpack the rest, or give a set of your own another name: task.dataset=<folder in data.root>."
        )
    total, before, bad = sum(opened.sizes.values()), 0, 0
    for split, stored in opened.splits.items():
        counts = np.bincount(stored.labels, minlength=classes)
        absent = [opened.classes[code] for code in np.flatnonzero(counts == 0)]
        if absent and split == "train":
            raise ReattendError(f"{images.name}: no image to train on is of class {', '.join(absent[:3])}.")
        say(
            f"{images.name}, {opened.origin}: {split} {len(stored):,} images of {classes} classes, "
            f"{counts.min():,} / {int(np.median(counts)):,} / {counts.max():,} of a class (least / median / most)"
        )
        wanted = known.sizes.get(split) if known else None
        if wanted not in (None, len(stored)):
            say(f"warning: {split} of {images.name} should have {wanted:,} images")
        for name, reason in _unreadable(stored, progress, before, total):
            bad += 1
            if bad <= _SHOWN:
                say(f"warning: {name} is no whole image ({reason})")
        before += len(stored)
    if bad:
        more = f", of which {_SHOWN} are named above" if bad > _SHOWN else ""
        say(f"warning: {bad} file(s) are no images{more}. Runs leave them out; get them again to have all.")


def _unreadable(stored: Stored, progress: Callable[[int, int], None], before: int, total: int) -> list[tuple[str, str]]:
    """Name and reason of each file that is no image, by its first and last bytes, and by decoding those in doubt."""
    if not isinstance(stored, Encoded):
        return []
    found = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(stored), _CHUNK):
            rows = range(start, min(start + _CHUNK, len(stored)))
            whole = pool.map(lambda row: looks_whole(*stored.ends(row)), rows)
            for row in [row for row, good in zip(rows, whole, strict=True) if not good]:
                try:
                    decode(stored.read(row))
                except BadImageError as error:
                    found.append((stored.name(row), str(error)))
            progress(before + rows[-1] + 1, total)
    return found
