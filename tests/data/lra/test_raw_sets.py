"""Text, retrieval and image from their raw files."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import re
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reattend.data.lra.documents import byte_block
from reattend.data.lra.image import MD5, ImageSet, grey
from reattend.data.lra.raw import RawSet
from reattend.data.lra.retrieval import FILES, RetrievalSet
from reattend.data.lra.sets import raw_set
from reattend.data.lra.text import TextSet
from reattend.data.network import reachable
from reattend.errors import ReattendError


def documents(raw: RawSet, split: str, which: int = 0) -> list[tuple[int, list[int]]]:
    """Label and ids of every sample of a split."""
    found = []
    for block in raw.blocks(split, raw.sources()):
        ends = np.cumsum(block.lengths[which])
        parts = np.split(block.tokens[which], ends[:-1])
        found += [(int(label), part.tolist()) for label, part in zip(block.labels, parts, strict=True)]
    return found


def ids(text: bytes) -> list[int]:
    return [byte + 1 for byte in text]


def write_reviews(folder: Path) -> dict[str, list[tuple[int, bytes]]]:
    reviews = {
        "train": [(1, "schön".encode()), (0, b"bad"), (0, b"awful <br />"), (1, b"good")],
        "test": [(0, b"x"), (1, b"")],
    }
    for split, samples in reviews.items():
        for number, (label, review) in enumerate(samples):
            path = folder / "aclImdb" / split / ("neg", "pos")[label] / f"{number}_5.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(review)
    return reviews


def write_parquet(folder: Path, reviews: dict[str, list[tuple[int, bytes]]]) -> None:
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    for split, samples in reviews.items():
        columns = {"text": [review.decode() for _, review in samples], "label": [label for label, _ in samples]}
        parquet.write_table(pyarrow.table(columns), folder / f"{split}-00000-of-00001.parquet")


def test_byte_ids_and_the_stored_cut() -> None:
    everything = bytes(range(256))
    block = byte_block([[everything, b"", b"a" * 5000]], [0, 1, 0])
    assert block.lengths[0].tolist() == [256, 0, 4096]
    assert block.tokens[0].tolist() == [*range(1, 257), *[98] * 4096]
    assert byte_block([[everything[:255]]], [0]).tokens[0].dtype == np.uint8


def test_text_is_the_same_from_folders_and_from_parquet(tmp_path: Path) -> None:
    reviews = write_reviews(tmp_path / "folders")
    write_parquet(tmp_path / "parquet" / "plain_text", reviews)
    for split, samples in reviews.items():
        expected = [(label, ids(review)) for label, review in sorted(samples)]
        for name in ("folders", "parquet"):
            assert documents(TextSet(tmp_path / name, complete=False), split) == expected


def test_a_half_unpacked_archive_is_refused(tmp_path: Path) -> None:
    write_reviews(tmp_path)
    with pytest.raises(ReattendError, match=r"train/neg has 2 reviews \(\*\.txt\) in place of 12,500.*aclImdb_v1"):
        TextSet(tmp_path, complete=True).sources()
    for path in (tmp_path / "aclImdb/test/pos").iterdir():
        path.unlink()
    with pytest.raises(ReattendError, match="test/pos has 0 reviews"):
        TextSet(tmp_path, complete=False).sources()


def test_wrong_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path, {"train": [(3, b"a")], "test": [(0, b"a")]})
    raw = TextSet(tmp_path, complete=False)
    with pytest.raises(ReattendError, match=r"labels other than 0 and 1 \(3\)"):
        documents(raw, "train")
    with pytest.raises(ReattendError, match=r"test of lra/text has 1 samples in place of 25,000"):
        documents(TextSet(tmp_path, complete=True), "test")
    path = tmp_path / "test-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ReattendError, match="is no whole parquet file"):
        documents(raw, "test")


@pytest.mark.parametrize(("text", "label", "found"), [(None, 0, "row 2: no text, found None"), ("a", None, "None")])
def test_parquet_with_nothing_in_a_cell(tmp_path: Path, text: Any, label: Any, found: str) -> None:
    import pyarrow
    from pyarrow import parquet

    for split in ("train", "test"):
        table = pyarrow.table({"text": ["x", text], "label": [0, label]})
        parquet.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    with pytest.raises(ReattendError, match=rf"train-00000-of-00001\.parquet.*{found}"):
        documents(TextSet(tmp_path, complete=False), "train")


def test_an_incomplete_form_does_not_hide_a_whole_one(tmp_path: Path) -> None:
    write_pairs(tmp_path / "retrieval")
    (tmp_path / "retrieval" / FILES["test"]).unlink()
    with pytest.raises(ReattendError, match=r"retrieval/new_aan_pairs\.test\.tsv\nThe others are there"):
        RetrievalSet(tmp_path / "retrieval", complete=False).sources()
    whole = write_pairs(tmp_path / "lra_release" / "lra_release" / "tsv_data")
    assert {path.parent for path in RetrievalSet(tmp_path / "retrieval", complete=False).sources().values()} == {whole}
    reviews = write_reviews(tmp_path / "text")
    write_parquet(tmp_path / "text", reviews)
    assert "aclImdb/test/pos" in TextSet(tmp_path / "text", complete=False).sources()
    for path in (tmp_path / "text/aclImdb/test/pos").iterdir():
        path.unlink()
    assert set(TextSet(tmp_path / "text", complete=False).sources()) == {"train", "test"}


def test_text_from_the_cache_of_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    raw = TextSet(tmp_path / "text", complete=False)
    assert not raw.obtainable()
    (tmp_path / "cache" / "stanfordnlp___imdb").mkdir(parents=True)
    reviews = write_reviews(tmp_path / "folders")

    class Split:
        def __init__(self, samples: list[tuple[int, bytes]]) -> None:
            self.samples = samples

        def to_parquet(self, path: str) -> None:
            write_parquet(tmp_path / "made", {"train": self.samples})
            (tmp_path / "made" / "train-00000-of-00001.parquet").rename(path)

    def load_dataset(name: str) -> dict[str, Split]:
        assert (name, os.environ["HF_HUB_OFFLINE"]) == ("stanfordnlp/imdb", "1")
        return {split: Split(samples) for split, samples in reviews.items()}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert raw.obtainable()
    raw.obtain()
    assert documents(raw, "train") == documents(TextSet(tmp_path / "folders", complete=False), "train")

    def fail(name: str) -> Any:
        raise ConnectionError("no way")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=fail))
    with pytest.raises(ReattendError, match="datasets could not get stanfordnlp/imdb: no way"):
        raw.obtain()


ROWS = [b'1.0\tA\tB\the said "x\ty\n', b"0\tC\tD\t\xc3\xa9\tz \n"]


def write_pairs(folder: Path, rows: list[bytes] = ROWS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES.values():
        (folder / name).write_bytes(b"".join(rows))
    return folder


@pytest.mark.parametrize("place", ["retrieval", "retrieval/tsv_data", "lra_release/lra_release/tsv_data"])
def test_retrieval_wherever_the_release_puts_it(tmp_path: Path, place: str) -> None:
    write_pairs(tmp_path / place)
    raw = RetrievalSet(tmp_path / "retrieval", complete=False)
    assert documents(raw, "validation", 0) == [(1, ids(b'he said "x')), (0, ids(b"\xc3\xa9"))]
    assert documents(raw, "test", 1) == [(1, ids(b"y")), (0, ids(b"z "))]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (b"1\tA\tB\tx\n", r"found 4 field\(s\), the first b'1'"),
        (b"2\tA\tB\tx\ty\n", r"found 5 field\(s\), the first b'2'"),
        (b"\n", r"found 1 field\(s\), the first b''"),
    ],
)
def test_a_malformed_pair_is_named(tmp_path: Path, row: bytes, found: str) -> None:
    raw = RetrievalSet(write_pairs(tmp_path, [ROWS[0], row]), complete=False)
    with pytest.raises(ReattendError, match=rf"new_aan_pairs\.train\.tsv, line 2: expected five fields.*{found}"):
        documents(raw, "train")


def test_incomplete_pairs(tmp_path: Path) -> None:
    raw = RetrievalSet(write_pairs(tmp_path), complete=True)
    with pytest.raises(ReattendError, match="train of lra/retrieval has 2 samples in place of 147,086"):
        documents(raw, "train")
    (tmp_path / FILES["test"]).unlink()
    with pytest.raises(ReattendError, match=r"Wanted:\n  \S*new_aan_pairs\.test\.tsv\nThe others are there"):
        raw.sources()


def write_batches(folder: Path, images: int = 20) -> dict[str, tuple[np.ndarray, list[int]]]:
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    batches = {}
    for name in MD5:
        pixels = random.integers(0, 256, (images, 3072), dtype=np.uint8)
        labels = random.integers(0, 10, images).tolist()
        (folder / name).write_bytes(
            pickle.dumps({b"data": pixels, b"labels": labels, b"batch_label": b"x"}, protocol=2)
        )
        batches[name] = (pixels, labels)
    return batches


def test_image_splits_and_pixels(tmp_path: Path) -> None:
    batches = write_batches(tmp_path / "cifar-10-batches-py")
    raw = ImageSet(tmp_path, complete=False)
    train, validation, test = (documents(raw, split) for split in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (90, 10, 20)
    labels = [label for name in list(MD5)[:5] for label in batches[name][1]]
    assert [label for label, _ in train + validation] == labels
    assert [label for label, _ in test] == batches["test_batch"][1]
    pixels = batches["data_batch_5"][0][-1].reshape(3, 32, 32).astype(np.float64)
    level = 255.5 / 255.0 * np.tensordot([0.2989, 0.5870, 0.1140], pixels, 1)
    clear = np.abs(level - np.round(level)) > 1e-3  # float32 may fall on the other side of a whole number
    found = np.array(validation[-1][1]).reshape(32, 32)
    assert (found == np.floor(level))[clear].all()
    assert clear.mean() > 0.9


def test_grey_of_grey_pixels() -> None:
    levels = np.arange(256, dtype=np.uint8)
    images = np.broadcast_to(levels[:, None, None, None], (256, 3, 1, 1))
    assert np.abs(grey(images)[:, 0, 0].astype(int) - levels).max() <= 1
    assert (grey(images)[[0, 255], 0, 0] == [0, 255]).all()


def test_md5_are_those_of_torchvision(tmp_path: Path) -> None:
    # Read and not imported, which takes seconds.
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    assert spec.submodule_search_locations
    code = Path(spec.submodule_search_locations[0], "datasets", "cifar.py").read_text()
    assert (
        dict(re.findall(r'\["(data_batch_\d|test_batch)", "([0-9a-f]{32})"\]', code.split("class CIFAR100")[0])) == MD5
    )
    write_batches(tmp_path / "cifar-10-batches-py")
    with pytest.raises(ReattendError, match=f"data_batch_1 is damaged: its MD5 is not {MD5['data_batch_1']}"):
        documents(ImageSet(tmp_path, complete=True), "train")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps({b"data": Evil(), b"labels": []}), "it names posix.mkdir"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}), "2 images and 1 labels"),
        (pickle.dumps({b"labels": [1]}), "b'data'"),
        (b"", "Ran out of input"),
    ],
)
def test_bad_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, reason: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_batches(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    with pytest.raises(ReattendError, match=rf"test_batch is no batch of CIFAR-10 \({reason}"):
        documents(ImageSet(tmp_path, complete=False), "test")
    assert not Path("evil").exists()


def test_the_archive_itself_is_unpacked_safely(tmp_path: Path) -> None:
    write_batches(tmp_path / "made" / "cifar-10-batches-py")
    raw = ImageSet(tmp_path / "image", complete=False)
    raw.folder.mkdir()
    assert not raw.obtainable()
    with tarfile.open(raw.folder / "cifar-10-python.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    assert raw.obtainable()
    raw.obtain()
    assert len(documents(raw, "test")) == 20
    with tarfile.open(raw.folder / "cifar-10-python.tar.gz", "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    with pytest.raises(ReattendError, match=r"cifar-10-python\.tar\.gz cannot be unpacked"):
        raw.obtain()
    assert not (tmp_path / "outside").exists()


def test_options_of_a_set(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"no Long Range Arena set 'txt'\. Did you mean 'text'"):
        raw_set("txt", tmp_path)
    with pytest.raises(ReattendError, match=r"lra/text takes no brackets\. It takes none"):
        raw_set("text", tmp_path, brackets="kept")
    with pytest.raises(ReattendError, match=r"lra/pathfinder takes no image\. Did you mean 'images'"):
        raw_set("pathfinder", tmp_path, image="archive")
    places = {raw_set("listops", tmp_path, lengths=lengths).reading for lengths in (None, [500, 2000], [100, 300])}
    assert places == {"brackets_kept", "brackets_kept_100_300"}


def test_nobody_answers() -> None:
    assert not reachable("http://127.0.0.1:9/")
