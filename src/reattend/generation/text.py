"""Text by bytes or words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from reattend.config.schema import RunConfig
from reattend.data.language.source import vocabulary_of
from reattend.generation.medium import Medium
from reattend.generation.options import Options

_LENGTH = 200
_BETWEEN = "\n---\n"


class Writing(Medium):
    """Text that goes on with a prompt."""

    options: ClassVar[Mapping[str, str]] = {"prompt": "prompt=TEXT", "length": f"length={_LENGTH}"}

    def __init__(self, config: RunConfig, options: Options, places: int) -> None:
        self.text = options.prompt or ""
        self.samples = options.batch or 1
        self.drawn = options.length or min(_LENGTH, max(1, places - len(self.encode(self.text))))

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""

    def prompt(self) -> Tensor:
        """The prompt's tokens, the same for each sample."""
        return torch.tensor(self.encode(self.text), dtype=torch.int64).expand(self.samples, -1)

    def length(self) -> int:
        """As asked for."""
        return self.drawn

    def show(self, tokens: Tensor) -> str:
        """The samples, each behind its prompt."""
        return _BETWEEN.join(self.decode(row) for row in tokens.tolist())


class Bytes(Writing):
    """Text in UTF-8; bytes that are none become the replacement character."""

    unit: ClassVar[str] = "bytes"

    def encode(self, text: str) -> list[int]:
        """Its bytes."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Of bytes."""
        return bytes(ids).decode(errors="replace")


class Words(Writing):
    """Text by the words of the run's data; what is not among them becomes <unk>."""

    unit: ClassVar[str] = "words"

    def __init__(self, config: RunConfig, options: Options, places: int) -> None:
        self.vocabulary = vocabulary_of(config)
        super().__init__(config, options, places)

    def encode(self, text: str) -> list[int]:
        """Ids of its words, which blanks part, and of its line breaks."""
        return self.vocabulary.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """With one blank between words."""
        return self.vocabulary.decode(ids)
