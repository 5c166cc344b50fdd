"""Stand-ins: tiny generated sets in the real file format, read by the real reader."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path

import numpy as np

from reattend.data.archive import SeriesFiles
from reattend.data.known_sets import KNOWN_SETS, KnownSet
from reattend.data.ts_format import Series, write_ts
from reattend.errors import ReattendError, nearest

_MAX_LENGTH = 64
_MAX_STEP_VALUES = 4000  # channels x steps of a series, as far as it keeps 16 steps
_MIN_CASES, _MIN_PER_CLASS = 40, 10
_SHRINKAGE = 20


def stand_in(dataset: str | None) -> SeriesFiles:
    """Writes the stand-in of a set, unless it lies in the cache already, and says where.

    It has the channels, class names and kind of lengths of the real set, but few and short series: a twentieth of the
    training cases, at least 40 and ten of a class, half as many for testing, and at most 64 steps, fewer where there
    are more than 62 channels. In channel c at step t of N a case of class k is cos(2 pi (k + 1) t / N + c) plus noise
    of standard deviation 0.5, negative for the second N classes, which repeat the frequencies of the first; a
    regression case with target y in [-1, 1] is y cos(2 pi 2 t / N + c) plus noise of 0.2. Files depend on the name
    alone. They go to `$XDG_CACHE_HOME/reattend/standin` (`~/.cache` without that variable).

    Raises:
        ReattendError: the shape of the set is not known here, or the cache cannot be written.
    """
    known = KNOWN_SETS.get(dataset or "")
    if dataset is None or known is None:
        raise ReattendError(
            f"There is no stand-in for the data set {dataset}.{nearest(dataset or '', KNOWN_SETS)} "
            f"Stand-ins exist for {', '.join(sorted(KNOWN_SETS))}: set task.dataset to one of them."
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reattend" / "standin"
    paths = (cache / f"{dataset}_TRAIN.ts", cache / f"{dataset}_TEST.ts")
    # A legacy generator, because NumPy keeps its stream the same for ever: the checksum is part of a run's identity.
    random = np.random.RandomState(zlib.crc32(dataset.encode()))
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            for split, path in enumerate(paths):
                whole = Path(folder) / path.name
                _write(whole, dataset, known, split, random)
                if not (path.is_file() and path.read_bytes() == whole.read_bytes()):
                    whole.replace(path)
    except OSError as error:
        raise ReattendError(
            f"The stand-in of {dataset} cannot be written to {cache}: {error.strerror or error}. "
            "Set XDG_CACHE_HOME to a folder that can be written."
        ) from error
    return SeriesFiles(dataset, *paths, "stand-in")


def _write(path: Path, dataset: str, known: KnownSet, split: int, random: np.random.RandomState) -> None:
    name = f"{dataset}StandIn"
    shrunk = known.cases[0] // _SHRINKAGE
    if not known.class_labels:
        cases = max(_MIN_CASES, shrunk) // (1 + split)
        targets = np.round(random.uniform(-1.0, 1.0, cases), 3).tolist()
        write_ts(
            path, [_series(known, target, 1, 0.2, random) for target in targets], problem_name=name, targets=targets
        )
        return
    count = len(known.class_labels)
    per_class = max(_MIN_PER_CLASS, _MIN_CASES // count, shrunk // count) // (1 + split)
    classes = list(range(count)) * per_class
    write_ts(
        path,
        [_series(known, -1.0 if label // _longest(known) % 2 else 1.0, label, 0.5, random) for label in classes],
        problem_name=name,
        labels=[known.class_labels[label] for label in classes],
        class_labels=known.class_labels,
    )


def _longest(known: KnownSet) -> int:
    return min(known.length, _MAX_LENGTH, max(16, _MAX_STEP_VALUES // known.channels))


def _series(known: KnownSet, amplitude: float, cycles: int, noise: float, random: np.random.RandomState) -> Series:
    longest = _longest(known)
    length = longest if known.equal_length else random.randint(longest // 2, longest + 1)
    phase = np.arange(known.channels)[:, None] + 2.0 * np.pi * (cycles + 1) * np.arange(length) / longest
    return np.round(amplitude * np.cos(phase) + noise * random.standard_normal((known.channels, length)), 3)
