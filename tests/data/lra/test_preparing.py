"""Preparing: once, whole, by one of several processes, and with a message for all that is missing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from reattend.config import compose, read
from reattend.data.checksum import data_checksum
from reattend.data.facts import data_facts
from reattend.data.lra.raw import RawSet
from reattend.data.lra.sets import SETS, raw_set
from reattend.data.lra.source import LRASource
from reattend.data.lra.standin import write_stand_in
from reattend.data.prepare import main
from reattend.data.prepared.preparing import opened, prepare
from reattend.data.source import SOURCES, source_class, source_of
from reattend.errors import ReattendError
from reattend.runs.lease import Lease

TASKS = [f"lra/{name}" for name in SETS]


def watch() -> tuple[list[str], list[tuple[int, int]]]:
    return [], []


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A folder with raw pairs that count as whole."""
    raw = raw_set("retrieval", tmp_path)
    write_stand_in(raw)
    return tmp_path


def whole(root: Path):  # type: ignore[no-untyped-def]
    return SETS["retrieval"](root / "lra" / "retrieval", False)


def test_prepares_once(pairs: Path) -> None:
    said, seen = watch()
    first = prepare(whole(pairs), said.append, lambda done, total: seen.append((done, total)))
    assert first.sizes == {"train": 512, "validation": 128, "test": 128}
    assert [done for done, _ in seen] == [512, 640, 768]
    stamp = (first.folder / "manifest.json").stat().st_mtime_ns
    again = prepare(whole(pairs), said.append, lambda done, total: pytest.fail("nothing to do"))
    assert again.checksum == first.checksum
    assert (first.folder / "manifest.json").stat().st_mtime_ns == stamp
    assert "prepared, train 512" in said[0]
    assert "prepared already and whole" in said[1]


@pytest.mark.parametrize("cut", [1, 0])
def test_a_damaged_array_is_named_and_made_again(pairs: Path, cut: int) -> None:
    said, _ = watch()
    first = prepare(whole(pairs), said.append, lambda *_: None)
    path = first.folder / "train.tokens2.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] if cut else content[:-1] + b"\0")
    assert prepare(whole(pairs), said.append, lambda *_: None).checksum == first.checksum
    assert "train.tokens2.npy" in said[1]
    assert "made again" in said[1]
    assert path.read_bytes() == content


def test_raw_files_that_change_are_read_again_and_may_be_deleted(pairs: Path) -> None:
    said, _ = watch()
    first = prepare(whole(pairs), said.append, lambda *_: None)
    path = whole(pairs).sources()["test"]
    path.write_bytes(path.read_bytes().replace(b"0.0\tA0", b"1.0\tA0").replace(b"1.0\tA1\t", b"0.0\tA1\t"))
    second = prepare(whole(pairs), said.append, lambda *_: None)
    assert said[1].startswith("test of lra/retrieval changed since")
    assert second.checksum != first.checksum
    first, *others = whole(pairs).sources().values()
    first.unlink()
    assert prepare(whole(pairs), said.append, lambda *_: None).checksum == second.checksum
    assert "prepared already; the raw files that it was made of are not all there, " in said[-1]
    for path in others:
        path.unlink()
    assert prepare(whole(pairs), said.append, lambda *_: None).checksum == second.checksum


def test_files_that_are_not_those_of_the_set_are_refused(pairs: Path) -> None:
    with pytest.raises(ReattendError, match="has 512 samples in place of 147,086"):
        prepare(raw_set("retrieval", pairs), lambda line: None, lambda *_: None)
    with pytest.raises(ReattendError, match=r"in \S*lra/retrieval, but not prepared yet: python scripts/prepare_data"):
        opened(raw_set("retrieval", pairs))


OPTIONS = [
    ("listops", {"brackets": "kept"}),
    ("listops", {"brackets": "dropped", "lengths": [100, 300]}),
    ("text", {}),
    ("retrieval", {}),
    ("image", {}),
    ("pathfinder", {"contour_length": 9, "resolution": 128}),
    ("pathfinder", {"images": "archive", "contour_length": 6}),
]


@pytest.mark.parametrize("folder", ["plain", "with blank, 'quotes' and \"more\" (a=b) {c} [d] \\\\ é\\"])
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_the_command_prepares_what_was_missing(tmp_path: Path, name: str, options: dict[str, Any], folder: str) -> None:
    raw = raw_set(name, tmp_path / folder, **options)
    start, script, *overrides = shlex.split(raw.command)
    assert (start, script) == ("python", "scripts/prepare_data.py")
    source = source_of(read(compose(overrides)))
    assert isinstance(source, LRASource)
    assert (source.raw.prepared, source.raw) == (raw.prepared, raw)
    with pytest.raises(ReattendError) as raised:
        opened(raw)
    assert f"Then: {raw.command}\n" in str(raised.value)


def small_listops(root: Path, monkeypatch: pytest.MonkeyPatch) -> RawSet:
    monkeypatch.setattr(SETS["listops"], "full_sizes", {"train": 20, "validation": 4, "test": 4})
    return raw_set("listops", root, lengths=(20, 60))


def small_pathfinder(root: Path, monkeypatch: pytest.MonkeyPatch) -> RawSet:
    monkeypatch.setattr(SETS["pathfinder"], "full_sizes", {"train": 20, "validation": 4, "test": 4})
    return raw_set("pathfinder", root, contour_length=6)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("small", "name"),
    [
        (small_listops, "basic_train.tsv"),
        (small_pathfinder, "test.images.npy"),
        (small_pathfinder, "train.labels.npy"),
    ],
)
def test_damaged_generated_files_are_generated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Any, name: str, before: bool
) -> None:
    """Damaged by one byte, before arrays are made of them or afterwards."""
    said, _ = watch()
    raw = small(tmp_path, monkeypatch)
    if before:
        raw.obtain()
    else:
        prepare(raw, said.append, lambda *_: None)
    path = raw.place / name
    content = path.read_bytes()
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    checksum = prepare(raw, said.append, lambda *_: None).checksum
    assert any(line.startswith(f"{name} of lra/{raw.name} missing or not as generated") for line in said)
    assert path.read_bytes() == content
    path.unlink()
    if raw.name == "pathfinder":
        with pytest.raises(ReattendError, match="is not on this machine"):
            raw.sources()
    shutil.rmtree(raw.prepared)
    assert prepare(raw, said.append, lambda *_: None).checksum == checksum
    assert path.read_bytes() == content


def test_a_persons_files_beside_an_old_record_are_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = small_listops(tmp_path, monkeypatch)
    raw.obtain()
    theirs = {}
    for path in raw.sources().values():
        head, *rows = path.read_bytes().splitlines(keepends=True)
        theirs[path] = b"".join([head, *reversed(rows)])
        path.write_bytes(theirs[path])
    prepare(raw, lambda line: None, lambda *_: None)
    assert {path: path.read_bytes() for path in theirs} == theirs


@pytest.mark.parametrize("kind", ["file", "below a file", "link to nothing"])
@pytest.mark.parametrize("name", ["text", "listops"])
def test_a_root_that_is_no_folder(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    root = tmp_path / {"file": "file", "below a file": "file/deep/down", "link to nothing": "link"}[kind]
    raw = raw_set(name, root)
    for action in (lambda: opened(raw), lambda: prepare(raw, lambda line: None, lambda *_: None)):
        with pytest.raises(ReattendError, match=rf"is a (file|link).*data\.root={root}: choose") as raised:
            action()
        assert "claim" not in str(raised.value)


def test_a_mistyped_root_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name in ("text", "retrieval", "image"):
        with pytest.raises(ReattendError, match="is not on this machine"):
            prepare(raw_set(name, tmp_path / "mistyped"), lambda line: None, lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_waits_for_another_process(pairs: Path) -> None:
    said, _ = watch()
    lease = Lease.claim(whole(pairs).folder / "prepared" / ".claim")

    def hear(line: str) -> None:
        said.append(line)
        lease.release()

    prepare(whole(pairs), hear, lambda *_: None)
    assert said[0] == "Another process prepares lra/retrieval: waiting for it."
    assert "prepared, train" in said[1]


STAND_IN = """
from reattend.data.prepared.preparing import stand_in
from reattend.data.lra.sets import raw_set
from reattend.data.lra.standin import write_stand_in
print(stand_in(raw_set("listops", "/absent", standin=True), write_stand_in).checksum)
"""


def test_several_processes_make_one_stand_in(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STAND_IN],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "XDG_CACHE_HOME": str(tmp_path / cache)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, cache in enumerate(("shared", "shared", "own"))
    ]
    checksums = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert len(checksums) == 1
    assert "" not in checksums


@pytest.mark.parametrize("task", TASKS)
def test_missing_data_is_told_at_once(tmp_path: Path, task: str) -> None:
    config = read(compose([f"task={task}", f"data.root={tmp_path}"]))
    start = time.perf_counter()
    with pytest.raises(ReattendError) as raised:
        data_checksum(config)
    assert time.perf_counter() - start < 2
    message = str(raised.value)
    assert f"The data of {task} is not on this machine.\nWanted:\n  {tmp_path}/lra/{config.task.dataset}/" in message
    assert "Source: " in message
    option = " task.data_options.brackets=dropped" if task == "lra/listops" else ""
    assert f"python scripts/prepare_data.py task={task}{option} data.root={tmp_path}\n" in message
    assert "add data=standin" in message


@pytest.mark.parametrize("task", TASKS)
def test_what_is_known_without_data(tmp_path: Path, task: str) -> None:
    facts = data_facts(read(compose([f"task={task}", f"data.root={tmp_path}"])))
    assert facts.sizes["validation"] == (0 if task == "lra/text" else SETS[task[4:]].full_sizes["validation"])
    assert facts.shape["num_documents"] == (2 if task == "lra/retrieval" else 1)
    strict = data_facts(read(compose([f"task={task}", f"data.root={tmp_path}", "protocol=strict"])))
    assert strict.sizes["train"] == (20_000 if task == "lra/text" else SETS[task[4:]].full_sizes["train"])


def test_the_archive_of_pathfinder_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ReattendError, match=r"pathfinder32/curv_contour_length_9\n.*/lra_release\.gz.*images=generated"
    ):
        opened(raw_set("pathfinder", tmp_path, images="archive", contour_length=9))


def test_every_task_has_a_source() -> None:
    from reattend.config.groups import members

    kinds = {task.partition("/")[0]: task for task in members("task")}
    targets = {read(compose([f"task={task}"])).task.data_target for task in kinds.values()}
    assert targets == set(SOURCES)
    with pytest.raises(ReattendError, match=r"my\.Data has no data source"):
        source_class("my.Data")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = f"data.root={tmp_path}"
    assert main(["task=lra/txt", here]) == 2
    assert "There is no task 'lra/txt'. Did you mean 'lra/text'?" in capsys.readouterr().err
    assert main([here]) == 2
    assert "Which data? python scripts/prepare_data.py task=lra/text" in capsys.readouterr().err
    assert main(["task=lra/text", "data.rot=x"]) == 2
    assert "Did you mean 'root'" in capsys.readouterr().err
    start = time.process_time()
    assert main(["task=lra/text", "lra/retrieval", "lra/image", "uea/japanese_vowels", here]) == 1
    assert time.process_time() - start < 4
    output, errors = capsys.readouterr()
    assert "JapaneseVowels: 270 + 370 series, from sktime" in output
    assert errors.count("is not on this machine") == 3
    assert errors.endswith("Not prepared: lra/text, lra/retrieval, lra/image\n")
    assert main(["lra/image", "data=standin", here]) == 0
    assert "lra/image: stand-in, " in capsys.readouterr().out
