"""Whether two files are the training and the test file of one set, and of the set that they are named after."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reattend.data.known_sets import KNOWN_SETS
from reattend.data.ts_format import TimeSeriesFile
from reattend.data.zipped import ZipMember
from reattend.errors import ReattendError


@dataclass(frozen=True)
class FileFacts:
    """What is left of a file when its series are not needed any more.

    Attributes:
        path: of the file.
        kind: "classification" or "regression".
        channels: of every case.
        classes: number of declared classes; 0 for regression.
        length: steps of the longest case.
        cases: their number.
        digest: SHA-256 of all values in order, whatever the header and the spelling of numbers.
    """

    path: Path | ZipMember
    kind: str
    channels: int
    classes: int
    length: int
    cases: int
    digest: bytes

    @classmethod
    def of(cls, file: TimeSeriesFile) -> FileFacts:
        """The facts of `file`."""
        digest = hashlib.sha256()
        for series in file.series:
            digest.update(repr(series.shape).encode())
            digest.update(np.ascontiguousarray(series).data)
        return cls(
            path=file.path,
            kind="regression" if file.labels is None else "classification",
            channels=file.num_channels,
            classes=len(file.class_labels),
            length=max(series.shape[1] for series in file.series),
            cases=len(file.series),
            digest=digest.digest(),
        )


def check_pair(train: FileFacts, test: FileFacts) -> None:
    """Compares the two files of a set.

    Raises:
        ReattendError: they do not belong together, or are the same.
    """
    if train.kind != test.kind:
        raise ReattendError(f"Of {train.path} and {test.path} one has class labels, the other regression targets.")
    if train.channels != test.channels:
        raise ReattendError(
            f"{train.path} has {train.channels} channel(s), {test.path} has {test.channels}: "
            "they do not belong to one set."
        )
    if train.digest == test.digest:
        raise ReattendError(
            f"{train.path} and {test.path} have the same {train.cases} cases: a model would be tested on what it has "
            "learned. One is a copy of the other; fetch the set again."
        )


def check_known(dataset: str, train: FileFacts, test: FileFacts) -> None:
    """Compares the files with what is known of the set of that name; sets of other names pass.

    A difference is an error where the facts were read in the files themselves, and a warning where they are recalled.

    Raises:
        ReattendError: the files are not those of the archive.
    """
    known = KNOWN_SETS.get(dataset)
    if known is None:
        return
    compared = {
        "kind": (known.kind, train.kind),
        "channels": (known.channels, train.channels),
        "classes": (len(known.class_labels), train.classes),
        "steps of the longest training series": (known.length, train.length),
        "training cases": (known.cases[0], train.cases),
        "test cases": (known.cases[1], test.cases),
    }
    differences = [f"{name}: {found}, not {wanted}" for name, (wanted, found) in compared.items() if found != wanted]
    if not differences:
        return
    report = f"{train.path} and {test.path} differ from what is known of {dataset} ({'; '.join(differences)})."
    if known.confirmed:
        raise ReattendError(
            f"{report} Fetch the archive's files again, or give a set of your own another name: task=uea/folder "
            "task.dataset=<Name>."
        )
    warnings.warn(f"{report} What is known was not read in the files, so they are used as they are.", stacklevel=2)
