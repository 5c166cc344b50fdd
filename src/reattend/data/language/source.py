"""Texts by bytes or words as a data source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reattend.config.schema import RunConfig
from reattend.data.language.corpus import Text, pieces
from reattend.data.language.texts import make_text
from reattend.data.language.vocabulary import Vocabulary
from reattend.data.language.words import Words
from reattend.data.source import DataFacts, DataSource, source_of
from reattend.errors import ReattendError

_OF_WORDS = "reattend.tasks.WordModelling"


@dataclass(frozen=True)
class TextSource(DataSource):
    """A text, real or stand-in.

    Attributes:
        text: the text.
        max_length: tokens of a piece.
        selects_on_test: whether the validation split is left alone.
    """

    text: Text
    max_length: int
    selects_on_test: bool

    @classmethod
    def from_config(cls, config: RunConfig) -> TextSource:
        """What the task of `config` learns from.

        Raises:
            ReattendError: there is no such text, or it has other tokens than the task predicts.
        """
        task, options, standin = config.task, config.task.data_options, config.data.name == "standin"
        text = make_text(task.dataset, config.data.root, options.get("file"), standin)
        by_words = isinstance(text, Words)
        if by_words != (task.target == _OF_WORDS):
            told = ("words", "task=word_lm/file") if by_words else ("bytes", "task=char_lm/enwik8 or char_lm/file")
            raise ReattendError(f"task.dataset={task.dataset} is a text by {told[0]}, which {told[1]} learn from.")
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
        """Finds the text."""
        self.text.find()

    def checksum(self) -> str:
        """Of its tokens."""
        return self.text.open().checksum

    def facts(self) -> DataFacts | None:
        """Of the whole text, whether or not it is here; None for one of a person's own that is not."""
        known = self.text.known()
        if known is None:
            return None
        vocabulary, lengths = known
        shape = self.text.shape(vocabulary, self.max_length)
        sizes = {split: pieces(length, self.max_length, self.max_length) for split, length in lengths.items()}
        return DataFacts(shape, sizes | ({"validation": 0} if self.selects_on_test else {}))

    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Unpacks, converts and verifies the text."""
        self.text.prepare(say, progress)


def vocabulary_of(config: RunConfig) -> Vocabulary:
    """The words that a run of `config` learns, for what it is to go on with and for what it says.

    Raises:
        ReattendError: its tokens are no words, or its text is not here.
    """
    source = source_of(config)
    if not isinstance(source, TextSource) or not isinstance(source.text, Words):
        raise ReattendError(f"{config.task.name} learns no words: word_lm/* does.")
    return source.text.vocabulary()
