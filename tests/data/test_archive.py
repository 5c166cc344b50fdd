"""Where a set's files are looked for, and what is said when they are not there."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from reattend.data import TimeSeriesData
from reattend.data.archive import locate
from reattend.errors import ReattendError

from .conftest import WriteSet


def put(folder: Path, name: str, *splits: str) -> Path:
    folder.mkdir(parents=True)
    for split in splits:
        (folder / f"{name}_{split}.ts").write_text(split)
    return folder


@pytest.mark.parametrize("place", ["Toy", "uea/Toy", "Multivariate_ts/Toy"])
def test_finds_both_files_below_the_root(tmp_path: Path, place: str) -> None:
    folder = put(tmp_path / place, "Toy", "TRAIN", "TEST")
    found = locate("Toy", "uea", tmp_path)
    assert (found.train, found.test) == (folder / "Toy_TRAIN.ts", folder / "Toy_TEST.ts")
    assert found.origin == "folder"


def zipped(path: Path, folder: Path, prefix: str, names: list[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.write(folder / name, f"{prefix}{name}")
    return path


TOY = ["Toy_TRAIN.ts", "Toy_TEST.ts"]


@pytest.mark.parametrize(
    ("path", "prefix"),
    [("Toy.zip", ""), ("Multivariate2018_ts.zip", "Multivariate_ts/Toy/"), ("uea/Toy.zip", "../../escaped/")],
)
def test_reads_inside_a_zip_and_writes_nothing(tmp_path: Path, write_set: WriteSet, path: str, prefix: str) -> None:
    folder = write_set(["1,2:a", "2,4:b", "3,3:a"], ["5,5:b"]) / "Toy"
    unpacked = TimeSeriesData("Toy", "uea", root=tmp_path, batch_size=2, seed=0)
    root = tmp_path / "zips"
    root.mkdir()
    zipped(root / path, folder, prefix, TOY)
    before = sorted(tmp_path.rglob("*"))
    data = TimeSeriesData("Toy", "uea", root=root, batch_size=2, seed=0)
    assert data.origin == "zip"
    assert data.checksum == unpacked.checksum
    assert data.train.x.equal(unpacked.train.x)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_zip_that_is_cut_off_damaged_or_ambiguous_is_named(tmp_path: Path, write_set: WriteSet) -> None:
    folder = write_set([f"{case},0.125:a" for case in range(500)], ["5,5:b"]) / "Toy"
    root = tmp_path / "zips"
    path = zipped(root / "Toy.zip", folder, "Toy/", TOY)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ReattendError, match=r"Toy\.zip is not a whole zip archive .*Remove it and fetch it again"):
        locate("Toy", "uea", root)
    path.write_bytes(whole[:200] + bytes(byte ^ 255 for byte in whole[200:260]) + whole[260:])
    with pytest.raises(ReattendError, match=r"Toy\.zip is not a whole zip archive"):
        locate("Toy", "uea", root).checksum()
    zipped(path, folder, "Toy/", TOY[:1])
    with pytest.raises(ReattendError, match=r"Toy_TEST\.ts is missing, though .*Toy\.zip holds the other file"):
        locate("Toy", "uea", root)
    with zipfile.ZipFile(path, "a") as archive:
        archive.write(folder / TOY[0], f"copy/{TOY[0]}")
    with pytest.raises(ReattendError, match=r"has Toy_TRAIN\.ts more than once: Toy/Toy_TRAIN\.ts, copy/Toy_TRAIN\.ts"):
        locate("Toy", "uea", root)


def test_expands_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / "archives" / "Toy", "Toy", "TRAIN", "TEST")
    assert locate("Toy", "ucr", "~/archives").train == tmp_path / "archives" / "Toy" / "Toy_TRAIN.ts"


def test_a_folder_of_ones_own_goes_before_what_sktime_ships(tmp_path: Path) -> None:
    assert locate("OSULeaf", "ucr", tmp_path).origin == "sktime"
    (tmp_path / "OSULeaf").mkdir()  # An empty folder, as other loaders leave behind, fools nobody.
    assert locate("OSULeaf", "ucr", tmp_path).origin == "sktime"
    put(tmp_path / "ucr" / "OSULeaf", "OSULeaf", "TRAIN", "TEST")
    assert locate("OSULeaf", "ucr", tmp_path).origin == "folder"


def test_half_a_set_is_an_error(tmp_path: Path) -> None:
    folder = put(tmp_path / "OSULeaf", "OSULeaf", "TRAIN")
    with pytest.raises(ReattendError) as raised:
        locate("OSULeaf", "ucr", tmp_path)
    assert f"{folder / 'OSULeaf_TEST.ts'} is missing" in str(raised.value)


def test_missing_set_names_paths_source_size_and_stand_in(tmp_path: Path) -> None:
    start = time.perf_counter()
    with pytest.raises(ReattendError) as raised:
        locate("Heartbeat", "uea", tmp_path)
    assert time.perf_counter() - start < 2
    message = str(raised.value)
    for part in (
        "Heartbeat_TRAIN.ts and Heartbeat_TEST.ts",
        f"  {tmp_path / 'Heartbeat'}\n",
        f"  {tmp_path / 'uea' / 'Heartbeat'}\n",
        "timeseriesclassification.com/aeon-toolkit/Archives/Multivariate2018_ts.zip",
        "204 + 205 series, roughly 101.0 MB",
        "data.root=<folder>",
        "data=standin",
    ):
        assert part in message


def test_missing_set_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"Did you mean 'Heartbeat'\?"):
        locate("Hartbeat", "uea", tmp_path)
    put(tmp_path / "MyOwnRecording", "MyOwnRecording", "TRAIN", "TEST")
    with pytest.raises(ReattendError, match=r"Did you mean 'MyOwnRecording'\?"):
        locate("MyOwnRecordng", "uea", tmp_path)


@pytest.mark.parametrize(
    ("dataset", "archive", "message"),
    [
        (None, "uea", "Add task.dataset=<Name>"),
        ("../Toy", "uea", "give the name alone"),
        ("..", "uea", "give the name alone"),
        ("Toy", "uca", "Unknown archive 'uca', choose from uea, ucr, tser. Did you mean 'uea'?"),
    ],
)
def test_bad_names(tmp_path: Path, dataset: str | None, archive: str, message: str) -> None:
    with pytest.raises(ReattendError) as raised:
        locate(dataset, archive, tmp_path)
    assert message in str(raised.value)


def test_checksum_sees_every_byte_and_which_file_it_is_in(tmp_path: Path) -> None:
    folder = put(tmp_path / "Toy", "Toy", "TRAIN", "TEST")
    found = locate("Toy", "uea", tmp_path)
    first = found.checksum()
    assert first == locate("Toy", "uea", tmp_path).checksum()
    (folder / "Toy_TEST.ts").write_text("TESt")
    changed = found.checksum()
    (folder / "Toy_TRAIN.ts").write_text("TESt")
    (folder / "Toy_TEST.ts").write_text("TRAIN")
    assert len({first, changed, found.checksum()}) == 3


def test_needs_neither_sktime_nor_lightning(tmp_path: Path) -> None:
    code = (
        "import sys; from reattend.data.archive import locate; locate('JapaneseVowels', 'uea', '.').checksum();"
        "assert not {'sktime', 'torch', 'pandas', 'pytorch_lightning'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
