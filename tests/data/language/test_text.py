"""Texts by bytes: every byte is a target once, whatever the pieces."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reattend.config import compose, read
from reattend.data import TextData
from reattend.data.language import corpus
from reattend.data.language.blocks import IGNORED, TokenBlocks
from reattend.data.language.texts import make_text
from reattend.data.samplers import MicroBatch
from reattend.data.source import source_of
from reattend.errors import ReattendError


def whole(blocks: TokenBlocks) -> dict[str, Any]:
    return blocks[MicroBatch(torch.arange(len(blocks)), torch.ones(len(blocks)), len(blocks))]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 23, 40])
@pytest.mark.parametrize("stride", [8, 4, 3, 1])
def test_every_token_is_a_target_once_and_stands_behind_those_before_it(size: int, stride: int) -> None:
    tokens = np.arange(1, size + 1, dtype=np.uint8)
    batch = whole(TokenBlocks(tokens, 8, stride))
    x, y = batch["x"], batch["y"]
    targets = y[y != IGNORED]
    assert sorted(targets.tolist()) == tokens.tolist()
    assert torch.equal(x[y != IGNORED], targets)
    for row in range(len(x)):
        real = x[row][x[row] > 0]
        assert torch.equal(real, torch.arange(int(real[0]), int(real[0]) + len(real)))
        if row:
            first = int((y[row] != IGNORED).nonzero()[0])
            assert first >= 8 - stride, "context of the sliding evaluation"


def text_data(path: Path, **options: Any) -> TextData:
    given = {"root": path.parent, "batch_size": 4, "seed": 0, "max_length": 16, "file": str(path)}
    return TextData("file", **(given | options))


def test_a_file_is_cut_by_byte_and_its_line_breaks_count(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    content = bytes(np.random.default_rng(0).integers(0, 256, 2000, dtype=np.uint8)) + b"\n\n"
    path.write_bytes(content)
    data = text_data(path)
    assert data.validation is not None
    joined = np.concatenate([data.train.tokens, data.validation.tokens, data.test.tokens])
    assert joined.tobytes() == content
    assert [len(part.tokens) for part in (data.train, data.validation, data.test)] == [1802, 100, 100]
    assert data.shape == {"vocabulary": 256, "max_length": 16, "num_outputs": 256}
    assert isinstance(data.train.tokens, np.memmap)
    # Also before there are two processes: the model is tried on a sample of each form.
    (sliding,) = text_data(path, devices=2).further_tests().values()
    counted = sum(int((batch["y"] != IGNORED).sum()) for batch in data.eval_loader(sliding))
    assert counted == len(data.test.tokens)
    assert text_data(path, selection="test").validation is None


def test_the_source_knows_what_the_data_has(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"ab" * 1000)
    config = read(compose(["task=char_lm/file", f"task.data_options.file={path}", "attention=linear"]))
    source = source_of(config)
    data = text_data(path, max_length=1024, batch_size=config.recipe.batch_size)
    facts = source.facts()
    assert facts is not None
    assert facts.sizes == data.sizes
    assert facts.shape == data.shape
    assert source.checksum() == data.checksum
    path.write_bytes(b"ac" * 1000)
    assert source.checksum() != data.checksum


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["task=char_lm/file"], "task.data_options.file=<any file>"),
        (["task=char_lm/file", "task.data_options.file=nowhere.txt"], "there is no such file"),
        (["task=char_lm/file", "task.data_options.file=/"], "it is a folder"),
        (["task=char_lm/file", "task.data_options.file=a", "data=standin"], "is not read with data=standin"),
        (["task=char_lm/enwik8"], "Wanted: .*enwik8/enwik8, or enwik8.zip beside it"),
        (["task=char_lm/enwik8", "task.dataset=words", "data=standin"], "is a text by words, which task=word_lm/file"),
        (["task=word_lm/wikitext103", "task.dataset=enwik8"], "is a text by bytes, which task=char_lm/enwik8"),
    ],
)
def test_what_is_missing_is_told(tmp_path: Path, overrides: list[str], told: str) -> None:
    config = read(compose([*overrides, "attention=linear", f"data.root={tmp_path}"]))
    with pytest.raises(ReattendError, match=told):
        source_of(config).require()


def test_too_short_a_text_and_too_long_a_stride_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"short")
    with pytest.raises(ReattendError, match="has 5 bytes: a text of at least 1,000 is wanted"):
        text_data(tmp_path / "short")
    (tmp_path / "text").write_bytes(b"text" * 1000)
    with pytest.raises(ReattendError, match="sliding_stride=17 leaves tokens out: at most max_length=16"):
        text_data(tmp_path / "text", sliding_stride=17)


def test_enwik8_is_unpacked_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"wiki" * 500
    monkeypatch.setattr(corpus, "ENWIK8_BYTES", len(content))
    monkeypatch.setattr(corpus, "ENWIK8_SHA1", hashlib.sha1(content).hexdigest())
    (tmp_path / "enwik8").mkdir()
    with zipfile.ZipFile(tmp_path / "enwik8" / "enwik8.zip", "w") as archive:
        archive.writestr("enwik8", content)
    text = make_text("enwik8", tmp_path, None, False)
    with pytest.raises(ReattendError, match="It lies there packed: the next command unpacks it"):
        text.find()
    said: list[str] = []
    text.prepare(said.append, lambda done, total: None)
    assert "train 1,800, validation 100, test 100" in said[0]
    assert (tmp_path / "enwik8" / "enwik8").read_bytes() == content
    (tmp_path / "enwik8" / "enwik8").write_bytes(b"else" * 500)
    with pytest.raises(ReattendError, match="is not enwik8: its SHA-1"):
        text.prepare(said.append, lambda done, total: None)
    (tmp_path / "enwik8" / "enwik8").write_bytes(content[:-1])
    with pytest.raises(ReattendError, match="has 1,999 bytes in place of 2,000"):
        text.open()


def test_the_stand_in_is_the_same_everywhere() -> None:
    opened = make_text("enwik8", "nowhere", None, True).open()
    assert {split: len(part) for split, part in opened.splits.items()} == {
        "train": 54_000,
        "validation": 3_000,
        "test": 3_000,
    }
    assert opened.checksum == make_text("enwik8", "elsewhere", None, True).open().checksum
