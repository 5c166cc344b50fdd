"""Text: the sentiment of IMDb reviews (Maas et al., 2011), byte by byte."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from reattend.data import network
from reattend.data.lra.documents import SAMPLES_PER_BLOCK, VOCABULARY, byte_block
from reattend.data.lra.raw import STORED_BYTES, RawSet
from reattend.data.prepared.arrays import Block
from reattend.data.prepared.raw_files import Progress
from reattend.errors import ReattendError
from reattend.runs.files import replacing

_HUB_NAME, _HUB = "stanfordnlp/imdb", "https://huggingface.co"
_CLASSES = ("neg", "pos")
_PER_CLASS = 12_500
_SOURCE = (
    "Source: https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz (84 MB; unpack it there), or the parquet "
    f"files of {_HUB}/datasets/{_HUB_NAME} (42 MB; with a network the command below fetches them itself)."
)


@dataclass(frozen=True)
class TextSet(RawSet):
    """IMDb reviews from `aclImdb/{train,test}/{neg,pos}/*.txt` or the hub's parquet files; 0 is negative.

    Samples are sorted by class and bytes, so that all forms give the same arrays. There is no development set: the
    followed code takes the test set for one.
    """

    name: ClassVar[str] = "text"
    num_outputs: ClassVar[int] = 2
    vocabulary: ClassVar[int] = VOCABULARY
    most_tokens: ClassVar[int | None] = STORED_BYTES
    full_sizes: ClassVar[Mapping[str, int]] = {"train": 25_000, "test": 25_000}

    @property
    def reading(self) -> str:
        """One reading: how much of a review is used is decided when it is loaded."""
        return "bytes"

    def sources(self) -> dict[str, Path]:
        """The four folders of reviews, or the two parquet files."""
        folder = self.folder / "aclImdb"
        folders = {
            f"aclImdb/{split}/{label}": folder / split / label for split in self.full_sizes for label in _CLASSES
        }
        counts = {path: sum(1 for _ in path.glob("*.txt")) for path in folders.values() if folder.is_dir()}
        short = {path: found for path, found in counts.items() if not found or (self.complete and found != _PER_CLASS)}
        if counts and not short:
            return folders
        files = {split: self._parquet(split) for split in self.full_sizes}
        found_files = {split: path for split, path in files.items() if path}
        if len(found_files) == len(files):
            return found_files
        for path, found in short.items():
            raise ReattendError(
                f"{path} has {found:,} reviews (*.txt) in place of {_PER_CLASS:,}: the archive was not unpacked whole. "
                f"Unpack it again in {self.folder}. {_SOURCE}\nThen: {self.command}"
            )
        lines = [f"{folder}/{{train,test}}/{{neg,pos}}/*.txt", f"or {self.folder}/{{train,test}}-*.parquet"]
        raise self.missing(lines, _SOURCE)

    def _parquet(self, split: str) -> Path | None:
        inner = (self.folder, self.folder / "plain_text")
        return next((path for folder in inner for path in sorted(folder.glob(f"{split}-*.parquet"))), None)

    def obtainable(self) -> bool:
        """If the cache of `datasets` has the reviews, or the hub answers."""
        return _cache().is_dir() or (os.environ.get("HF_HUB_OFFLINE", "0") in ("", "0") and network.reachable(_HUB))

    def obtain(self, progress: Progress | None = None) -> None:
        """Takes the reviews from the cache of `datasets`, or lets it fetch them; kept as the hub's parquet files."""
        if _cache().is_dir():
            # Read when `datasets` is imported; without it the library tries for half a minute where no network is.
            os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            import datasets

            loaded = datasets.load_dataset(_HUB_NAME)
        except Exception as error:  # of whatever library is below
            raise ReattendError(
                f"The library datasets could not get {_HUB_NAME}: {error}\nStart the same command again, or get the "
                f"files by hand. {_SOURCE}"
            ) from error
        for split in self.full_sizes:
            with replacing(self.folder / f"{split}-00000-of-00001.parquet") as temporary:
                loaded[split].to_parquet(str(temporary))

    def blocks(self, split: str, sources: Mapping[str, Path]) -> Iterator[Block]:
        """Reviews of a split, negative ones first."""
        samples = sorted(_parquet_samples(sources[split]) if split in sources else _folder_samples(split, sources))
        self.check_size(split, len(samples))
        for start in range(0, len(samples), SAMPLES_PER_BLOCK):
            part = samples[start : start + SAMPLES_PER_BLOCK]
            yield byte_block([[review for _, review in part]], [label for label, _ in part])


def _cache() -> Path:
    """Where `datasets` keeps the set, without importing it."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets").expanduser() / _HUB_NAME.replace("/", "___")


def _folder_samples(split: str, sources: Mapping[str, Path]) -> list[tuple[int, bytes]]:
    return [
        (label, path.read_bytes())
        for label, name in enumerate(_CLASSES)
        for path in sources[f"aclImdb/{split}/{name}"].glob("*.txt")
    ]


def _parquet_samples(path: Path) -> list[tuple[int, bytes]]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, columns=["text", "label"])
    except (pyarrow.ArrowException, OSError) as error:
        raise ReattendError(
            f"{path} is no whole parquet file with columns text and label: {error}. {_SOURCE}"
        ) from error
    texts, labels = table["text"].to_pylist(), table["label"].to_pylist()
    if not set(labels) <= {0, 1}:
        others = sorted({str(label) for label in labels} - {"0", "1"})
        raise ReattendError(f"{path}: labels other than 0 and 1 ({', '.join(others[:5])}): not the IMDb reviews.")
    empty = next((row for row, text in enumerate(texts, start=1) if not isinstance(text, str)), None)
    if empty is not None:
        raise ReattendError(f"{path}, row {empty}: no text, found {texts[empty - 1]!r}. Get the file again. {_SOURCE}")
    return [(label, text.encode()) for label, text in zip(labels, texts, strict=True)]
