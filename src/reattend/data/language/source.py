"""Texts by bytes as a data source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reattend.config.schema import RunConfig
from reattend.data.language.corpus import ENWIK8_BYTES, VOCABULARY, Text, cut, make_text, pieces
from reattend.data.language.standin import BYTES
from reattend.data.source import DataFacts, DataSource
from reattend.errors import ReattendError


@dataclass(frozen=True)
class TextSource(DataSource):
    """A text, real or stand-in.

    Attributes:
        text: the text.
        max_length: bytes of a piece.
        selects_on_test: whether the validation split is left alone.
    """

    text: Text
    max_length: int
    selects_on_test: bool

    @classmethod
    def from_config(cls, config: RunConfig) -> TextSource:
        """What the task of `config` learns from."""
        options, standin = config.task.data_options, config.data.name == "standin"
        text = make_text(config.task.dataset, config.data.root, options.get("file"), standin)
        return cls(text, options["max_length"], config.protocol.selection == "test")

    @staticmethod
    def options(config: RunConfig) -> dict[str, Any]:
        """The options of the task's data."""
        return dict(config.task.data_options)

    @staticmethod
    def further_tests(config: RunConfig) -> list[str]:
        """The evaluation with a sliding context."""
        return ["test_sliding"]

    def require(self) -> None:
        """Finds the file."""
        self.text.find()

    def checksum(self) -> str:
        """Of the bytes."""
        return self.text.open().checksum

    def facts(self) -> DataFacts | None:
        """Of the whole text, whether or not it is here; None for a file that is not."""
        shape = {"vocabulary": VOCABULARY, "max_length": self.max_length, "num_outputs": VOCABULARY}
        size = BYTES if self.text.standin else ENWIK8_BYTES
        if self.text.name == "file" and not self.text.standin:
            try:
                size = self.text.find().stat().st_size
            except ReattendError:
                return None
        lengths = {split: end - start for split, (start, end) in cut(size).items()}
        sizes = {split: pieces(length, self.max_length, self.max_length) for split, length in lengths.items()}
        return DataFacts(shape, sizes | ({"validation": 0} if self.selects_on_test else {}))

    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Unpacks and verifies the text."""
        self.text.prepare(say)
