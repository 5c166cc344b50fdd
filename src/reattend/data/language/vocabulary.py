"""Words and their ids, as fairseq numbers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
END_OF_LINE, UNKNOWN = 2, 3
_MULTIPLE = 8


class Vocabulary:
    """Words, which blanks part in a text, and the end of a line, which is a token as well.

    Attributes:
        words: by id; the end of a line is "</s>", what is not among them "<unk>".
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._ids = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def of(cls, lines: Iterable[str]) -> Vocabulary:
        """All words of `lines`: four special ones, then the commonest first, those of one count by their letters.

        Words that nobody uses fill it up to a multiple of 8 (fairseq-preprocess with its defaults).
        """
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(line.split())
        own = sorted(counts.keys() - {*SPECIAL}, key=lambda word: (-counts[word], word))
        words = [*SPECIAL, *own]
        return cls([*words, *(f"madeupword{number:04d}" for number in range(-len(words) % _MULTIPLE))])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> list[int]:
        """Ids of the words of `text`, with an `END_OF_LINE` for each line break."""
        first, *others = text.split("\n")
        ids = self._of_line(first)
        for line in others:
            ids += [END_OF_LINE, *self._of_line(line)]
        return ids

    def encode_lines(self, lines: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Ids of all lines joined, each with an `END_OF_LINE` behind it, and how many each line has."""
        encoded = [[*self._of_line(line), END_OF_LINE] for line in lines]
        joined = np.fromiter((number for ids in encoded for number in ids), np.int32, sum(map(len, encoded)))
        return joined, np.array([len(ids) for ids in encoded], np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, with one blank between words: what `encode` made them of, but for further blanks."""
        parts = [
            "\n" * len([*group]) if ends else " ".join(self.words[number] for number in group)
            for ends, group in groupby(ids, lambda number: number == END_OF_LINE)
        ]
        return "".join(parts)

    def _of_line(self, line: str) -> list[int]:
        get = self._ids.get
        return [get(word, UNKNOWN) for word in line.split()]
