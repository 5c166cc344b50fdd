"""Text by bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from reattend.config.schema import RunConfig
from reattend.generation.medium import Medium
from reattend.generation.options import Options

_LENGTH = 200
_BETWEEN = "\n---\n"


class Bytes(Medium):
    """Text in UTF-8; bytes that are none become the replacement character."""

    unit: ClassVar[str] = "bytes"
    options: ClassVar[Mapping[str, str]] = {"prompt": "prompt=TEXT", "length": f"length={_LENGTH}"}

    def __init__(self, config: RunConfig, options: Options, places: int) -> None:
        self.text = options.prompt or ""
        self.samples = options.batch or 1
        self.drawn = options.length or _LENGTH

    def prompt(self) -> Tensor:
        """The prompt's bytes, the same for each sample."""
        return torch.tensor(list(self.text.encode()), dtype=torch.int64).expand(self.samples, -1)

    def length(self) -> int:
        """As asked for."""
        return self.drawn

    def show(self, tokens: Tensor) -> str:
        """The samples, each behind its prompt."""
        return _BETWEEN.join(bytes(row).decode(errors="replace") for row in tokens.tolist())
