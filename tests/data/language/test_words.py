"""Texts by words: fairseq's ids, every word a target once behind the word before it, whatever form the text has."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from reattend.config import compose, read
from reattend.data import TextData
from reattend.data.language import words
from reattend.data.language.blocks import IGNORED, TokenBlocks
from reattend.data.language.forms import FILES
from reattend.data.language.source import vocabulary_of
from reattend.data.language.texts import make_text
from reattend.data.language.vocabulary import END_OF_LINE, UNKNOWN, Vocabulary
from reattend.data.samplers import MicroBatch
from reattend.data.source import source_class, source_of
from reattend.errors import ReattendError
from reattend.train.execute import build_data

LINES = [" \n", " = Title = \n", " \n", " b a b <unk> c , a b . \n"] * 10
TRAIN, OTHER = "".join(LINES), " a new b \n\n"


def three_files(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, name in FILES.items():
        (folder / name).write_text(TRAIN if split == "train" else OTHER)
    return folder


def prepared(root: Path, file: Path) -> words.Words:
    text = make_text("words", root, str(file), False)
    assert isinstance(text, words.Words)
    text.prepare(lambda line: None, lambda done, total: None)
    return text


def test_ids_are_those_of_fairseq() -> None:
    """Special ones, the commonest first, equal counts by their letters, filled up to a multiple of eight."""
    vocabulary = Vocabulary.of(LINES)
    assert vocabulary.words[:11] == ("<s>", "<pad>", "</s>", "<unk>", "b", "=", "a", ",", ".", "Title", "c")
    assert vocabulary.words[11:] == tuple(f"madeupword{number:04d}" for number in range(5))


def test_text_comes_back_from_its_ids() -> None:
    vocabulary = Vocabulary.of(LINES)
    text = "a b\n\n= Title =\nnever  seen"
    ids = vocabulary.encode(text)
    assert ids[2:4] == [END_OF_LINE, END_OF_LINE]
    assert ids[-2:] == [UNKNOWN, UNKNOWN]
    assert vocabulary.decode(ids) == "a b\n\n= Title =\n<unk> <unk>"
    assert vocabulary.encode("") == []
    assert vocabulary.encode("a\n") == vocabulary.encode_lines(["a\n"])[0].tolist()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 23])
@pytest.mark.parametrize("stride", [8, 3])
def test_a_piece_is_told_the_word_before_it(size: int, stride: int) -> None:
    tokens = np.arange(1, size + 1, dtype=np.int32)
    blocks = TokenBlocks(tokens, 8, stride, start=100)
    batch = blocks[MicroBatch(torch.arange(len(blocks)), torch.ones(len(blocks)), len(blocks))]
    known = batch["y"] != IGNORED
    assert sorted(batch["y"][known].tolist()) == tokens.tolist()
    before = batch["y"][known] - 1
    assert torch.equal(batch["x"][known], torch.where(before == 0, 100, before))


def test_all_forms_of_a_text_have_the_same_words(tmp_path: Path) -> None:
    files = three_files(tmp_path / "files")
    (tmp_path / "packed").mkdir()
    with zipfile.ZipFile(tmp_path / "packed" / words.ARCHIVE, "w") as archive:
        for name in FILES.values():
            archive.write(files / name, f"wikitext-103/{name}")
    import datasets

    tables = {
        split: datasets.Dataset.from_dict({"text": (TRAIN if split == "train" else OTHER).splitlines(keepends=True)})
        for split in FILES
    }
    datasets.DatasetDict(tables).save_to_disk(str(tmp_path / "saved"))
    for split, table in tables.items():
        (tmp_path / "parquet").mkdir(exist_ok=True)
        table.to_parquet(str(tmp_path / "parquet" / f"{split}-00000-of-00001.parquet"))
    checksums = {
        prepared(tmp_path, tmp_path / form).open().checksum for form in ("files", "packed", "saved", "parquet")
    }
    assert len(checksums) == 1


def test_splits_are_memory_maps_of_ids_in_the_training_split_s_words(tmp_path: Path) -> None:
    text = prepared(tmp_path, three_files(tmp_path / "files"))
    data = TextData("words", root=tmp_path, batch_size=4, seed=0, max_length=16, file=str(tmp_path / "files"))
    assert isinstance(data.train.tokens, np.memmap)
    assert data.train.start == data.test.start == END_OF_LINE
    assert data.shape == {"vocabulary": 16, "max_length": 16, "num_outputs": 16, "start_token": END_OF_LINE}
    vocabulary = text.vocabulary()
    assert vocabulary.decode(data.test.tokens.tolist()) == "a <unk> b\n\n"
    lines = [" ".join(line.split()) for line in TRAIN.split("\n")]
    assert vocabulary.decode(data.train.tokens.tolist()) == "\n".join(lines)
    (sliding,) = data.further_tests().values()
    assert sum(int((batch["y"] != IGNORED).sum()) for batch in data.eval_loader(sliding)) == len(data.test.tokens)


def test_one_file_is_cut_by_line_and_its_source_knows_it_once_it_is_prepared(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    overrides = ["task=word_lm/file", f"task.data_options.file={path}", f"data.root={tmp_path}", "attention=linear"]
    config = read(compose(overrides))
    with pytest.raises(ReattendError, match=r"not prepared yet: .*task=word_lm/file task.data_options.file="):
        source_of(config).require()
    assert source_of(config).facts() is None
    source_of(config).prepare(lambda line: None, lambda done, total: None)
    opened = make_text("words", tmp_path, str(path), False).open()
    assert {split: len(tokens) for split, tokens in opened.splits.items()} == {
        "train": 270,
        "validation": 15,
        "test": 15,
    }
    facts = source_of(config).facts()
    assert facts is not None
    assert facts.shape["vocabulary"] == 96 == len(vocabulary_of(config))  # four, "line", 90 numbers, one of nobody's
    data = build_data(config)
    assert facts.sizes == data.sizes
    assert source_of(config).checksum() == data.checksum
    assert source_class(config.task.data_target).further_tests(config) == [*data.further_tests()]
    with pytest.raises(ReattendError, match="uea/japanese_vowels learns no words"):
        vocabulary_of(read(compose([])))


def wikitext(root: Path) -> words.Words:
    text = make_text("wikitext103", root, None, False)
    assert isinstance(text, words.Words)
    return text


def refused(text: words.Words) -> str:
    with pytest.raises(ReattendError) as refusal:
        text.prepare(lambda line: None, lambda done, total: None)
    return str(refusal.value)


def test_what_is_wrong_with_the_files_is_told(tmp_path: Path) -> None:
    told = refused(wikitext(tmp_path))
    assert "wikitext-103-v1.zip" in told
    assert "add data=standin" in told
    folder = tmp_path / "wikitext103"
    folder.mkdir()
    (folder / "wiki.train.raw").write_text(TRAIN)
    assert "wiki.train.raw there is not cut into words" in refused(wikitext(tmp_path))
    three_files(folder)
    assert "train of WikiText-103 has 160 words, ends of lines among them, in place of 103,227,021" in refused(
        wikitext(tmp_path)
    )
    assert not (folder / "prepared" / "words").exists()
    (folder / FILES["test"]).unlink()
    assert "has no wiki.test.tokens: all of" in refused(wikitext(tmp_path))
    (folder / FILES["test"]).write_text(OTHER)
    (folder / FILES["train"]).write_bytes(b"\xff\xfe\x00")
    assert "wiki.train.tokens is no text in UTF-8 (byte 0xff)" in refused(wikitext(tmp_path))


def test_wikitext_s_counts_are_those_of_all_lines_with_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_files(tmp_path / "wikitext103")
    counted = {
        split: sum(map(len, map(str.split, text.splitlines()))) + text.count("\n")
        for split, text in {"train": TRAIN, "validation": OTHER, "test": OTHER}.items()
    }
    monkeypatch.setattr(words, "TOKENS", counted)
    text = wikitext(tmp_path)
    text.prepare(lambda line: None, lambda done, total: None)
    assert {split: len(tokens) for split, tokens in text.open().splits.items()} == counted
    array = tmp_path / "wikitext103" / "prepared" / "words" / "train.tokens.npy"
    array.write_bytes(array.read_bytes()[:-4])
    with pytest.raises(ReattendError, match=r"train.tokens.npy has \d+ bytes in place of"):
        text.open()


def test_the_stand_in_is_the_same_everywhere() -> None:
    text = make_text("wikitext103", "nowhere", None, True)
    opened = text.open()
    assert opened.checksum == make_text("wikitext103", "elsewhere", None, True).open().checksum
    assert isinstance(text, words.Words)
    said = text.vocabulary().decode(opened.splits["test"][:8].tolist())
    assert said.startswith("\n= ")
    assert text.known() == (opened.vocabulary, {split: len(tokens) for split, tokens in opened.splits.items()})
