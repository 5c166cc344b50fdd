"""Prepared arrays: what is written comes back, and what is not whole is named."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reattend.data.prepared.arrays import Block, damaged, digest, open_prepared, write_prepared
from reattend.errors import ReattendError

FACTS = {"set": "text", "reading": "bytes"}


def block(*samples: list[int], dtype: type = np.uint8, documents: int = 1) -> Block:
    tokens: NDArray[Any] = np.array([token for sample in samples for token in sample], dtype=dtype)
    lengths = np.array([len(sample) for sample in samples])
    return Block((tokens,) * documents, (lengths,) * documents, np.arange(len(samples)))


def test_samples_come_back_from_memory_maps(tmp_path: Path) -> None:
    splits = {"train": [block([1, 2, 3], []), block([255])], "test": [block([7])]}
    prepared = write_prepared(tmp_path / "bytes", FACTS, {}, splits)
    again = open_prepared(tmp_path / "bytes", "")
    assert again.manifest == prepared.manifest
    assert again.sizes == {"train": 3, "test": 1}
    ((tokens, offsets),) = again.documents("train")
    assert isinstance(tokens, np.memmap)
    assert tokens.dtype == np.uint8
    assert [tokens[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [[1, 2, 3], [], [255]]
    assert again.labels("train").tolist() == [0, 1, 0]
    assert damaged(again) == []
    assert [path.name for path in tmp_path.iterdir()] == ["bytes"]


def test_a_wide_token_widens_what_came_before_it(tmp_path: Path) -> None:
    wide = block([256, 1], dtype=np.uint16)
    prepared = write_prepared(tmp_path / "x", FACTS, {}, {"train": [block([3]), wide, block([4])]})
    assert prepared.documents("train")[0].tokens.tolist() == [3, 256, 1, 4]


def test_pairs_have_two_documents(tmp_path: Path) -> None:
    prepared = write_prepared(tmp_path / "x", FACTS, {}, {"train": [block([3, 4], documents=2)]})
    assert [document.tokens.tolist() for document in prepared.documents("train")] == [[3, 4], [3, 4]]
    assert (prepared.folder / "train.tokens2.npy").is_file()


def test_the_checksum_hears_of_samples_and_reading_alone(tmp_path: Path) -> None:
    def checksum(name: str, reading: str, sources: dict[str, str], *samples: list[int]) -> str:
        facts = {"set": "text", "reading": reading}
        return write_prepared(tmp_path / name, facts, sources, {"train": [block(*samples)]}).checksum

    first = checksum("a", "bytes", {}, [1], [2])
    assert checksum("b", "bytes", {"file": "other"}, [1], [2]) == first
    assert len({first, checksum("c", "bytes", {}, [1, 2], []), checksum("d", "other", {}, [1], [2])}) == 3


def test_an_older_folder_is_replaced_and_leftovers_go(tmp_path: Path) -> None:
    (tmp_path / ".x.dead.tmp").mkdir()
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "old").touch()
    write_prepared(tmp_path / "x", FACTS, {}, {"train": [block([1])]})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]
    assert not (tmp_path / "x" / "old").exists()


def test_a_failure_leaves_the_old_folder(tmp_path: Path) -> None:
    write_prepared(tmp_path / "x", FACTS, {}, {"train": [block([1])]})
    with pytest.raises(ReattendError, match="No sample of test"):
        write_prepared(tmp_path / "x", FACTS, {}, {"train": [block([2])], "test": []})
    assert open_prepared(tmp_path / "x", "").documents("train")[0].tokens.tolist() == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_is_not_whole_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    prepared = write_prepared(folder, FACTS, {}, {"train": [block([1, 2])]})
    tokens = folder / "train.tokens.npy"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-1] + b"\7")
    assert damaged(open_prepared(folder, "")) == ["train.tokens.npy"]
    tokens.write_bytes(content[:-1])
    with pytest.raises(ReattendError, match=r"train\.tokens\.npy has \d+ bytes in place of \d+: do this"):
        open_prepared(folder, "do this")
    tokens.unlink()
    with pytest.raises(ReattendError, match=r"train\.tokens\.npy is missing: do this"):
        open_prepared(folder, "do this")
    (folder / "manifest.json").write_text(json.dumps({**prepared.manifest, "format": 99}))
    with pytest.raises(ReattendError, match="has format 99, not 1: do this"):
        open_prepared(folder, "do this")


@pytest.mark.parametrize(
    "spoil",
    [
        *(lambda manifest, key=key: manifest.pop(key) for key in ("format", "sources", "arrays", "sizes", "checksum")),
        lambda manifest: manifest.update(arrays=[]),
        lambda manifest: manifest["arrays"]["train.labels.npy"].pop("size"),
        lambda manifest: manifest["arrays"].update({"train.labels.npy": None}),
    ],
)
def test_a_manifest_that_lacks_something_is_named(tmp_path: Path, spoil: Callable[[dict[str, Any]], Any]) -> None:
    folder = tmp_path / "x"
    manifest = dict(write_prepared(folder, FACTS, {}, {"train": [block([1, 2])]}).manifest)
    spoil(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ReattendError, match=r"manifest\.json is no whole manifest \(without .*\): do this"):
        open_prepared(folder, "do this")
    (folder / "manifest.json").write_text("[1]")
    with pytest.raises(ReattendError, match=r"is no whole manifest \(no mapping\): do this"):
        open_prepared(folder, "do this")


def test_a_folder_s_digest_hears_of_names_and_contents(tmp_path: Path) -> None:
    def folder(name: str, files: dict[str, str]) -> dict[str, object]:
        for file, content in files.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / file).write_text(content)
        return digest(tmp_path / name)

    first = folder("a", {"1": "x", "2": "yz"})
    assert first["size"] == 3
    assert folder("b", {"2": "yz", "1": "x"}) == first
    assert folder("c", {"1": "xy", "2": "z"}) != first
    assert folder("d", {"1": "x", "3": "yz"}) != first
