"""Images in tables of the library `datasets`, on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from reattend.data.images.encoded import SPLITS, EncodedFiles, block, first_of
from reattend.data.images.stored import Encoded
from reattend.data.prepared.arrays import Block, Prepared
from reattend.errors import ReattendError

_ROWS = 10_000  # of a block


@dataclass(frozen=True)
class HubTables(EncodedFiles):
    """What `DatasetDict.save_to_disk` wrote, in the set's folder, or `parquet/<split>-*.parquet` in it.

    Columns are `image` and `label`. Parquet files are converted once to Arrow files of the same size, which can be read
    at any row.
    """

    form: ClassVar[str] = "hub"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """By the file that names the splits, or the parquet files."""
        return (folder / "dataset_dict.json").is_file() or any((folder / "parquet").glob("*.parquet"))

    def sources(self) -> dict[str, Path]:
        """The files."""
        files = self._parquet or sorted(self.folder.glob("*/*.arrow"))
        return {path.relative_to(self.folder).as_posix(): path for path in files}

    def describe(self, sources: Mapping[str, Path]) -> dict[str, Any]:
        """Size and time of each file."""
        return {name: {"size": path.stat().st_size, "time": path.stat().st_mtime_ns} for name, path in sources.items()}

    def classes(self, sources: Mapping[str, Path]) -> Sequence[str]:
        """As the column says, or the numbers up to the largest of training."""
        column = self._tables["train"].features["label"]
        if hasattr(column, "names"):
            return [str(name) for name in column.names]
        if not str(column.dtype).startswith(("int", "uint")):
            raise ReattendError(
                f"{self.folder}: labels of {self.name} are {column.dtype}, not numbers or ClassLabel. Encode them with "
                "Dataset.class_encode_column('label') and save the set again."
            )
        return [str(number) for number in range(max(self._tables["train"]["label"]) + 1)]

    def blocks(self, split: str, sources: Mapping[str, Path]) -> Iterator[Block]:
        """Row by row."""
        table = self._tables[split]
        for start in range(0, len(table), _ROWS):
            rows = table[start : start + _ROWS]
            images, labels = rows["image"], rows["label"]
            for row, (image, label) in enumerate(zip(images, labels, strict=True), start):
                if not image or not image["bytes"] or label is None or label < 0:
                    raise ReattendError(
                        f"{self.folder}: row {row} of {split} has no {'label' if image and image['bytes'] else 'image'}"
                        f" inside. Save the set anew with its images embedded, and only splits that have labels."
                    )
            names = [image["path"] or f"row {row} of {split}" for row, image in enumerate(images, start)]
            yield block(names, [[len(image["bytes"])] for image in images], labels)

    def open_split(self, prepared: Prepared, split: str) -> Encoded:
        """The rows."""
        return Rows(prepared, split, self.folder, self._tables[split])

    @property
    def _parquet(self) -> list[Path]:
        return sorted((self.folder / "parquet").glob("*.parquet"))

    @cached_property
    def _tables(self) -> dict[str, Any]:
        import datasets

        try:
            if self._parquet:
                files = {
                    split: first_of(names, lambda name: [str(p) for p in self._parquet if p.name.startswith(name)])
                    for split, names in SPLITS.items()
                }
                missing = [
                    " or ".join(f"{name}-*.parquet" for name in SPLITS[s]) for s, own in files.items() if not own
                ]
                if missing:
                    raise ReattendError(f"{self.folder / 'parquet'} has no {' and no '.join(missing)}.")
                cache = self.prepared.with_name("arrow")
                found = datasets.load_dataset("parquet", data_files=files, cache_dir=str(cache))
            else:
                found = datasets.load_from_disk(str(self.folder))
        except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
            raise ReattendError(f"{self.folder}: `datasets` cannot open {self.name}: {error}") from error
        tables = {}
        for split, names in SPLITS.items():
            name = next((name for name in (*names, split) if name in found), None)
            if name is None:
                raise ReattendError(f"{self.folder} has no split {' or '.join(names)}; it has {', '.join(found)}.")
            table = found[name]
            absent = {"image", "label"} - set(table.column_names)
            if absent:
                raise ReattendError(
                    f"{self.folder}: {name} has no column {' and no '.join(sorted(absent))}; it has "
                    f"{', '.join(table.column_names)}. Rename with Dataset.rename_column and save the set again."
                )
            tables[split] = table.select_columns(["image", "label"]).cast_column("image", datasets.Image(decode=False))
        return tables


class Rows(Encoded):
    """A row for each image."""

    def __init__(self, prepared: Prepared, split: str, folder: Path, table: Any) -> None:
        super().__init__(prepared, split, folder)
        self.table = table

    def _read(self, index: int) -> bytes:
        content: bytes = self.table[index]["image"]["bytes"]
        return content
