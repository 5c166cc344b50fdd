"""Texts as rows of words: WikiText-103, and any text that a person has."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from reattend.config.overrides import override_text
from reattend.data.language.corpus import OpenedText, Text
from reattend.data.language.forms import FILES, Form, OneFile, form_in
from reattend.data.language.standin import write_words
from reattend.data.language.vocabulary import END_OF_LINE, Vocabulary
from reattend.data.prepared.arrays import Block, Prepared
from reattend.data.prepared.preparing import opened, prepare, stand_in
from reattend.data.prepared.raw_files import SPLITS, RawFiles
from reattend.data.prepared.standin_root import standin_root
from reattend.errors import ReattendError

# As fairseq-preprocess counts them (Merity et al. 2016, Table 1, has the same): an end of line is a token.
TOKENS = {"train": 103_227_021, "validation": 217_646, "test": 245_569}
LINES = {"train": 1_801_350, "validation": 3_760, "test": 4_358}
VOCABULARY = 267_744  # 267,733 words, four special ones, and seven that nobody uses
ARCHIVE = "wikitext-103-v1.zip"
_LINES_AT_ONCE = 20_000


@dataclass(frozen=True)
class WordFiles(RawFiles):
    """The files of a text, and how they become arrays of word ids, in which a line is a sample.

    The manifest also has the vocabulary, which is that of the training split.

    Attributes:
        name: "wikitext103", or "words" for a person's own.
        own: that person's: a text, which is cut by line into the first 90 % for training, 5 % for validation and 5 %
            for test, or a folder with three files as WikiText's.
        place: the folder of all data.
    """

    name: str
    own: Path | None
    place: Path

    @classmethod
    def of(cls, name: str, root: Path, own: Path | None, standin: bool) -> WordFiles:
        """The files of that name, which need not be there."""
        if standin:
            folder = standin_root() / "language" / name
            return cls(folder, False, name, None, folder.parent)
        if name == "wikitext103":
            return cls(root / name, True, name, None, root)
        folder = root if own is None else own if own.is_dir() else own.parent
        return cls(folder, False, name, own, root)

    @property
    def label(self) -> str:
        """As its task is called."""
        return self.task

    @property
    def task(self) -> str:
        """Its own."""
        return "word_lm/wikitext103" if self.name == "wikitext103" else "word_lm/file"

    @property
    def root(self) -> Path:
        """The folder of all data."""
        return self.place

    @property
    def reading(self) -> str:
        """By words."""
        return "words"

    @property
    def prepared(self) -> Path:
        """Beside the files; of a person's own text in the folder of all data."""
        if self.own is None:
            return super().prepared
        return self.place / "prepared" / "words" / f"{self.own.stem}-{zlib.crc32(str(self.own).encode()):08x}"

    @property
    def samples(self) -> Mapping[str, int]:
        """Lines of WikiText-103; 0 of other texts."""
        return LINES if self.complete else dict.fromkeys(SPLITS, 0)

    def option_words(self) -> list[str]:
        """The file."""
        return [] if self.own is None else [override_text("task.data_options.file", self.own)]

    def sources(self) -> dict[str, Path]:
        """The files of the form that is there."""
        return self._form.sources()

    def facts(self, sources: Mapping[str, Path]) -> dict[str, Any]:
        """Also the words, by id."""
        return {**super().facts(sources), "vocabulary": list(self._vocabulary.words)}

    def blocks(self, split: str, sources: Mapping[str, Path]) -> Iterator[Block]:
        """Line by line."""
        found = 0
        for lines in _in_parts(self._lines(split)):
            ids, lengths = self._vocabulary.encode_lines(lines)
            found += len(ids)
            yield Block((ids,), (lengths,), np.zeros(len(lines), np.int64))
        if self.complete and found != TOKENS[split]:
            raise ReattendError(
                f"{self.folder}: {split} of WikiText-103 has {found:,} words, ends of lines among them, in place of "
                f"{TOKENS[split]:,}: the files are not whole, or of another text. Get {ARCHIVE} again; a text of your "
                f"own is word_lm/file: python scripts/prepare_data.py task=word_lm/file task.data_options.file="
                f"{self.folder}"
            )

    def _lines(self, split: str) -> Iterator[str]:
        return self._form.lines(split)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self._lines("train"))

    @cached_property
    def _form(self) -> Form:
        if self.name == "words" and self.own is None and self.folder == self.place:
            raise ReattendError(
                "Which text? task.data_options.file=<a text, or a folder with wiki.train.tokens, wiki.valid.tokens and "
                "wiki.test.tokens>; its words are what blanks part."
            )
        if self.own is not None and not self.own.is_dir():
            return OneFile(self.own)
        archives = [folder / ARCHIVE for folder in ([self.folder] if self.own else [self.folder, self.place])]
        form = form_in(self.folder, archives, self.prepared.with_name("arrow"))
        if form is None:
            if self.own is not None:
                raise ReattendError(f"task.data_options.file={self.own} has none of {', '.join(FILES.values())}.")
            raw = "wiki.train.raw"
            told = f" ({raw} there is not cut into words)" if (self.folder / raw).is_file() else ""
            raise self.missing(
                [
                    f"{self.folder / ARCHIVE}, or the three files in it, {', '.join(FILES.values())}, in its place,",
                    f"or the parquet files of Salesforce/wikitext, wikitext-103-v1, in {self.folder}",
                ],
                f"Source: https://s3.amazonaws.com/research.metamind.io/wikitext/{ARCHIVE} (181 MB), or "
                f"huggingface.co/datasets/Salesforce/wikitext{told}",
            )
        return form


@dataclass(frozen=True)
class Words(Text):
    """A text by words.

    Attributes:
        files: what it is made of.
        standin: whether that is a small generated text.
    """

    files: WordFiles
    standin: bool
    start: ClassVar[int | None] = END_OF_LINE  # as fairseq has it

    def find(self) -> Path:
        """Folder of its arrays."""
        return self._prepared().folder

    def open(self) -> OpenedText:
        """Maps the arrays into memory."""
        prepared = self._prepared()
        splits = {split: prepared.documents(split)[0].tokens for split in SPLITS}
        return OpenedText(splits, prepared.checksum, len(prepared.manifest["vocabulary"]))

    def known(self) -> tuple[int, dict[str, int]] | None:
        """Of WikiText-103 at any time, of another text if it is prepared."""
        if self.files.complete:
            return VOCABULARY, TOKENS
        try:
            found = self.open()
        except ReattendError:
            return None
        return found.vocabulary, {split: len(tokens) for split, tokens in found.splits.items()}

    def vocabulary(self) -> Vocabulary:
        """Its words.

        Raises:
            ReattendError: as `find`.
        """
        return Vocabulary(self._prepared().manifest["vocabulary"])

    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Makes the arrays, or verifies them."""
        if self.standin:
            say(f"{self.files.label}: stand-in, {self.find()}")
        else:
            prepare(self.files, say, progress)
        opened_text = self.open()
        told = ", ".join(f"{split} {len(tokens):,}" for split, tokens in opened_text.splits.items())
        say(f"{self.files.label}: words in those lines, {told}; vocabulary {opened_text.vocabulary:,}")

    def _prepared(self) -> Prepared:
        return stand_in(self.files, _write) if self.standin else opened(self.files)


def _write(files: WordFiles) -> None:
    write_words(files.folder, files.name)


def _in_parts(lines: Iterator[str]) -> Iterator[list[str]]:
    while part := [*islice(lines, _LINES_AT_ONCE)]:
        yield part
