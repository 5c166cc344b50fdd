"""Prepared token sequences: written whole once, read through memory maps.

A folder holds for each split `<split>.tokens.npy` (all samples joined, uint8 or uint16), `<split>.offsets.npy` (where
each begins, and the end, int64) and `<split>.labels.npy` (int64); of pairs also `<split>.tokens2.npy` and
`<split>.offsets2.npy`. `manifest.json` has sizes and SHA-256 of all that, and of the raw files.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reattend.errors import ReattendError
from reattend.runs.files import read_json, write_json

FORMAT = 1
MANIFEST = "manifest.json"
_SUFFIXES = ("", "2")  # of the first and the second document
_CHUNK = 1 << 24


class Block(NamedTuple):
    """Some samples of a split.

    Attributes:
        tokens: for each document of a sample: ids of all samples joined, uint8 or uint16.
        lengths: for each document: tokens of each sample (n,).
        labels: class of each sample (n,).
    """

    tokens: tuple[NDArray[Any], ...]
    lengths: tuple[NDArray[np.int64], ...]
    labels: NDArray[np.int64]


class Sequences(NamedTuple):
    """A document of every sample of a split: ids of sample i are `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class Prepared:
    """An opened folder."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def checksum(self) -> str:
        """SHA-256 of all that changes numbers."""
        return str(self.manifest["checksum"])

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of each split."""
        return dict(self.manifest["sizes"])

    def documents(self, split: str) -> list[Sequences]:
        """Memory maps of the split's documents, one or two."""
        names = [suffix for suffix in _SUFFIXES if f"{split}.tokens{suffix}.npy" in self.manifest["arrays"]]
        return [Sequences(self._map(f"{split}.tokens{n}.npy"), self._map(f"{split}.offsets{n}.npy")) for n in names]

    def labels(self, split: str) -> NDArray[np.int64]:
        """Memory map of the split's classes."""
        return self._map(f"{split}.labels.npy")

    def _map(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = np.load(self.folder / name, mmap_mode="r")
        return array


def open_prepared(folder: Path, remedy: str) -> Prepared:
    """Opens what `write_prepared` wrote; the files' sizes are checked, their contents are not read.

    Raises:
        ReattendError: nothing is there, or it is of another format or not whole; the message ends with `remedy`.
    """
    manifest = read_json(folder / MANIFEST, remedy)
    lacking = _lacking(manifest)
    if lacking:
        raise ReattendError(f"{folder / MANIFEST} is no whole manifest ({lacking}): {remedy}")
    if manifest["format"] != FORMAT:
        raise ReattendError(f"{folder} has format {manifest['format']}, not {FORMAT}: {remedy}")
    for name, facts in manifest["arrays"].items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts["size"]:
            told = "is missing" if size is None else f"has {size} bytes in place of {facts['size']}"
            raise ReattendError(f"{path} {told}: {remedy}")
    return Prepared(folder, manifest)


def _lacking(manifest: Any) -> str:
    """What keeps a JSON value from being a manifest; "" if nothing does."""
    if not isinstance(manifest, dict):
        return "no mapping"
    kinds = {"format": int, "sources": dict, "arrays": dict, "sizes": dict, "checksum": str}
    wrong = [name for name, kind in kinds.items() if not isinstance(manifest.get(name), kind)]
    arrays = manifest.get("arrays")
    if isinstance(arrays, dict):
        whole = [name for name, facts in arrays.items() if isinstance(facts, dict) and {"size", "sha256"} <= {*facts}]
        wrong += [name for name in arrays if name not in whole]
    return f"without {', '.join(wrong)}" if wrong else ""


def damaged(prepared: Prepared) -> list[str]:
    """Names of the arrays whose SHA-256 is not that of the manifest."""
    arrays = prepared.manifest["arrays"]
    return [name for name, facts in arrays.items() if digest(prepared.folder / name)["sha256"] != facts["sha256"]]


def write_prepared(
    folder: Path, facts: Mapping[str, Any], sources: Mapping[str, Any], splits: Mapping[str, Iterable[Block]]
) -> Prepared:
    """Writes all splits beside `folder` and then renames them to it, in place of an older one.

    The caller has to keep other writers away.

    Args:
        folder: what is written.
        facts: what the manifest says besides, with `set` and `reading`, which are part of the checksum.
        sources: what the manifest says of the raw files.
        splits: samples of each split, read as they are written.

    Raises:
        ReattendError: a split is empty, or the folder cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir(parents=True)
        sizes = {split: _write_split(temporary, split, blocks) for split, blocks in splits.items()}
        arrays = {path.name: _array_facts(path) for path in sorted(temporary.glob("*.npy"))}
        identity = {
            "set": facts["set"],
            "reading": facts["reading"],
            "arrays": {name: array["sha256"] for name, array in arrays.items()},
        }
        checksum = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        manifest = {"format": FORMAT, **facts, "sources": sources, "arrays": arrays, "sizes": sizes}
        write_json(temporary / MANIFEST, {**manifest, "checksum": checksum})
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    except OSError as error:
        raise ReattendError(
            f"{folder} cannot be written: {error.strerror or error}. Choose another disk with data.root=PATH."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Prepared(folder, {**manifest, "checksum": checksum})


def digest(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file; of a folder, those over the names and contents of its files.

    Raises:
        ReattendError: it cannot be read.
    """
    try:
        if path.is_file():
            with path.open("rb") as file:
                return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        whole, size = hashlib.sha256(), 0
        for inner in sorted(entry for entry in path.rglob("*") if entry.is_file()):
            content = inner.read_bytes()
            size += len(content)
            whole.update(f"{inner.relative_to(path).as_posix()}\n{len(content)}\n".encode())
            whole.update(content)
        return {"size": size, "sha256": whole.hexdigest()}
    except OSError as error:
        raise ReattendError(f"{path} cannot be read: {error.strerror or error}.") from error


def write_header(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Begins a `.npy` file, whose values are written after it piece by piece."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _write_split(folder: Path, split: str, blocks: Iterable[Block]) -> int:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        columns: list[_Column] = []
        labels: list[NDArray[np.int64]] = []
        for block in blocks:
            columns = columns or [_Column(Path(scratch, str(number))) for number in range(len(block.tokens))]
            for column, tokens, lengths in zip(columns, block.tokens, block.lengths, strict=True):
                column.add(tokens, lengths)
            labels.append(np.asarray(block.labels, np.int64))
        if not labels:
            raise ReattendError(f"No sample of {split} was found for {folder.parent.parent}.")
        for suffix, column in zip(_SUFFIXES, columns, strict=False):
            column.finish(folder / f"{split}.tokens{suffix}.npy")
            offsets = np.concatenate([[0], np.cumsum(np.concatenate(column.lengths))]).astype(np.int64)
            np.save(folder / f"{split}.offsets{suffix}.npy", offsets)
        joined = np.concatenate(labels)
        np.save(folder / f"{split}.labels.npy", joined)
        return len(joined)


class _Column:
    """Tokens that grow on disk, because those of a large split do not fit into memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pieces: list[NDArray[Any]] = []  # empty ones: each piece's type
        self.counts: list[int] = []
        self.lengths: list[NDArray[np.int64]] = []

    def add(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        with self.path.open("ab") as file:
            file.write(np.ascontiguousarray(tokens).data)
        self.pieces.append(tokens[:0])
        self.counts.append(len(tokens))
        self.lengths.append(np.asarray(lengths, np.int64))

    def finish(self, path: Path) -> None:
        dtype = np.result_type(*self.pieces)
        with self.path.open("rb") as raw, path.open("wb") as file:
            write_header(file, (sum(self.counts),), dtype)
            for piece, count in zip(self.pieces, self.counts, strict=True):
                for values in _read(raw, piece.dtype, count):
                    file.write(values.astype(dtype, copy=False).data)


def _read(raw: Any, dtype: np.dtype[Any], count: int) -> Iterator[NDArray[Any]]:
    while count > 0:
        values = np.fromfile(raw, dtype, min(count, _CHUNK))
        count -= len(values)
        yield values


def _array_facts(path: Path) -> dict[str, Any]:
    array = np.load(path, mmap_mode="r")
    return {**digest(path), "dtype": array.dtype.name, "shape": list(array.shape)}
