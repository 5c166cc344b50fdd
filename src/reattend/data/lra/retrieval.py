"""Retrieval: whether one of two papers of the ACL Anthology Network cites the other, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

from reattend.data.lra.documents import SAMPLES_PER_BLOCK, VOCABULARY, byte_block
from reattend.data.lra.raw import RELEASE, STORED_BYTES, RawSet
from reattend.data.prepared.arrays import Block
from reattend.errors import ReattendError

FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
_COLUMNS = "label, id1, id2, text1, text2"
_LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
_SOURCE = (
    f"Source: tsv_data/ in the Long Range Arena release, {RELEASE} (7.7 GB, often refused by its host; the papers are "
    "those of https://clair.eecs.umich.edu/aan). Put the three files there."
)


@dataclass(frozen=True)
class RetrievalSet(RawSet):
    """Pairs of papers from `new_aan_pairs.{train,eval,test}.tsv`: lines of label, two names and two texts."""

    name: ClassVar[str] = "retrieval"
    num_outputs: ClassVar[int] = 2
    vocabulary: ClassVar[int] = VOCABULARY
    most_tokens: ClassVar[int | None] = STORED_BYTES
    num_documents: ClassVar[int] = 2
    full_sizes: ClassVar[Mapping[str, int]] = {"train": 147_086, "validation": 18_090, "test": 17_437}

    @property
    def reading(self) -> str:
        """One reading: how much of a paper is used is decided when it is loaded."""
        return "bytes"

    def sources(self) -> dict[str, Path]:
        """The three files, in the folder, in `tsv_data` below it, or where the release unpacks to beside it."""
        release = self.folder.parent / "lra_release"
        places = [self.folder, self.folder / "tsv_data", release / "tsv_data", release / "lra_release" / "tsv_data"]
        incomplete: list[Path] = []
        for place in places:
            files = {split: place / name for split, name in FILES.items()}
            absent = [path for path in files.values() if not path.is_file()]
            if not absent:
                return files
            if len(absent) < len(files):
                incomplete = incomplete or absent
        if incomplete:
            raise self.missing(map(str, incomplete), f"The others are there. {_SOURCE}")
        raise self.missing([str(self.folder / name) for name in FILES.values()], _SOURCE)

    def blocks(self, split: str, sources: Mapping[str, Path]) -> Iterator[Block]:
        """Pairs in the order of the file."""
        count = 0
        rows = _rows(sources[split])
        while part := list(islice(rows, SAMPLES_PER_BLOCK)):
            count += len(part)
            yield byte_block([[row[1] for row in part], [row[2] for row in part]], [row[0] for row in part])
        self.check_size(split, count)


def _rows(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """Label and both texts of each line; quotation marks mean nothing, as in the followed code."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                fields = line.rstrip(b"\r\n").split(b"\t")
                if len(fields) != 5 or fields[0] not in _LABELS:
                    raise ReattendError(
                        f"{path}, line {number}: expected five fields with tabs between, {_COLUMNS}, and a label 0 or "
                        f"1; found {len(fields)} field(s), the first {fields[0][:20]!r}. {_SOURCE}"
                    )
                yield _LABELS[fields[0]], fields[3], fields[4]
    except OSError as error:
        raise ReattendError(f"{path} cannot be read: {error.strerror or error}.") from error
