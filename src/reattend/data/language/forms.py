"""The forms in which texts of lines lie on a disk: three files, the archive of them, tables, or one file."""

from __future__ import annotations

import io
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

from reattend.data.language.corpus import cut
from reattend.errors import ReattendError

FILES = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens", "test": "wiki.test.tokens"}
_LEAST_LINES = 20


class Form(ABC):
    """A text in three splits of lines."""

    @abstractmethod
    def sources(self) -> dict[str, Path]:
        """Its files, by name.

        Raises:
            ReattendError: some are missing.
        """

    @abstractmethod
    def lines(self, split: str) -> Iterator[str]:
        """Lines of a split.

        Raises:
            ReattendError: a file is damaged, or no text.
        """


@dataclass(frozen=True)
class ThreeFiles(Form):
    """`wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens` in a folder."""

    folder: Path

    def sources(self) -> dict[str, Path]:
        """All three."""
        missing = [name for name in FILES.values() if not (self.folder / name).is_file()]
        if missing:
            raise ReattendError(
                f"{self.folder} has no {' and no '.join(missing)}: all of {', '.join(FILES.values())} are wanted. "
                "Unpack their archive again."
            )
        return {name: self.folder / name for name in FILES.values()}

    def lines(self, split: str) -> Iterator[str]:
        """Of the split's file."""
        return _lines_of(self.folder / FILES[split])


@dataclass(frozen=True)
class Archive(Form):
    """A zip file with them in it, which is read as it is."""

    path: Path

    def sources(self) -> dict[str, Path]:
        """The archive."""
        return {self.path.name: self.path}

    def lines(self, split: str) -> Iterator[str]:
        """Of the file of that name in any folder of the archive."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                name = next((n for n in archive.namelist() if n.rpartition("/")[2] == FILES[split]), None)
                if name is None:
                    raise ReattendError(f"{self.path} has no {FILES[split]} in it; it has {_some(archive.namelist())}.")
                with archive.open(name) as file:
                    yield from _decoded(file, f"{name} in {self.path}")
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise ReattendError(f"{self.path} cannot be read ({error}). Get it again.") from error


@dataclass(frozen=True)
class Tables(Form):
    """Tables of the library `datasets` whose column `text` has a line in each row: parquet files, or what it saved."""

    folder: Path
    cache: Path

    def sources(self) -> dict[str, Path]:
        """Their files."""
        files = self._parquet or sorted(self.folder.glob("*/*.arrow"))
        return {path.relative_to(self.folder).as_posix(): path for path in files}

    def lines(self, split: str) -> Iterator[str]:
        """Of the split's rows."""
        if split not in self._tables or "text" not in self._tables[split].column_names:
            raise ReattendError(
                f"{self.folder} has no split {split} with a column `text`; it has {', '.join(self._tables) or 'none'}."
            )
        for rows in self._tables[split].iter(10_000):
            yield from rows["text"]

    @property
    def _parquet(self) -> list[Path]:
        # The whole repository of WikiText has several texts in it.
        places = (self.folder, self.folder / "parquet", self.folder / "wikitext-103-v1")
        return next((found for place in places if (found := sorted(place.glob("*.parquet")))), [])

    @cached_property
    def _tables(self) -> Any:
        import datasets

        try:
            if not self._parquet:
                return datasets.load_from_disk(str(self.folder))
            named = {split: [str(p) for p in self._parquet if p.name.startswith(split)] for split in FILES}
            files = {split: paths for split, paths in named.items() if paths}
            return datasets.load_dataset("parquet", data_files=files, cache_dir=str(self.cache))
        except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
            raise ReattendError(f"{self.folder}: `datasets` cannot open its tables: {error}") from error


@dataclass(frozen=True)
class OneFile(Form):
    """A text, cut by line into the first 90 % for training, 5 % for validation and 5 % for test."""

    path: Path

    def sources(self) -> dict[str, Path]:
        """The file."""
        if not self.path.is_file():
            raise ReattendError(f"task.data_options.file={self.path}: there is no such file or folder.")
        return {self.path.name: self.path}

    def lines(self, split: str) -> Iterator[str]:
        """Of that part."""
        start, end = self._places[split]
        return islice(_lines_of(self.path), start, end)

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        number = sum(1 for _ in _lines_of(self.path))
        if number < _LEAST_LINES:
            raise ReattendError(f"{self.path} has {number} lines: a text of at least {_LEAST_LINES} is wanted.")
        return cut(number)


def form_in(folder: Path, archives: Iterable[Path], cache: Path) -> Form | None:
    """What is there of `folder`: files, also in a folder of its archive, one of `archives`, or tables; None if nothing.

    Args:
        folder: where it is looked for.
        archives: places of the archive.
        cache: where tables may be kept that are made of parquet files.
    """
    for place in (folder, folder / "wikitext-103"):
        if any((place / name).is_file() for name in FILES.values()):
            return ThreeFiles(place)
    packed = next((path for path in archives if path.is_file()), None)
    if packed is not None:
        return Archive(packed)
    tables = Tables(folder, cache)
    return tables if tables.sources() else None


def _lines_of(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            yield from _decoded(file, str(path))
    except OSError as error:
        raise ReattendError(f"{path} cannot be read: {error.strerror or error}.") from error


def _decoded(file: IO[bytes], name: str) -> Iterator[str]:
    try:
        yield from io.TextIOWrapper(file, encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ReattendError(
            f"{name} is no text in UTF-8 (byte {error.object[error.start]:#04x}). Text by bytes is task=char_lm/file."
        ) from error


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
