"""What tokens are to a person: chosen by what a model has learnt."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from reattend.config.schema import RunConfig
from reattend.errors import ReattendError
from reattend.generation.options import Options

# By the tasks' paths.
MEDIA = {
    "reattend.tasks.ByteModelling": "reattend.generation.text.Bytes",
    "reattend.tasks.WordModelling": "reattend.generation.text.Words",
    "reattend.tasks.PixelModelling": "reattend.generation.pictures.Pictures",
}
_OPTIONS = ("prompt", "length", "prompt_rows", "out")  # that not every medium has


class Medium(ABC):
    """Tokens in the form in which a person gives and takes them.

    Attributes:
        unit: what a token is, in the plural.
        options: which of the command's options are for this medium, as a person writes them.

    Args:
        config: of the run.
        options: of the command.
        places: tokens that the model has positions for.

    Raises:
        ReattendError: the options do not suit the model, or the names of its tokens are missing.
    """

    unit: ClassVar[str]
    options: ClassVar[Mapping[str, str]]

    @abstractmethod
    def __init__(self, config: RunConfig, options: Options, places: int) -> None: ...

    @abstractmethod
    def prompt(self) -> Tensor:
        """Tokens that each sample begins with (B, P), int64; P may be 0.

        Raises:
            ReattendError: they are of data that is missing.
        """

    @abstractmethod
    def length(self) -> int:
        """Tokens of a sample that are drawn."""

    @abstractmethod
    def show(self, tokens: Tensor) -> str:
        """What is printed of prompts and what was drawn (B, P + length).

        Raises:
            ReattendError: a file cannot be written.
        """


def medium_of(config: RunConfig, options: Options, places: int) -> Medium:
    """The medium of a run's tokens.

    Raises:
        ReattendError: there is none, or options are of another one.
    """
    task = config.task
    if task.target not in MEDIA:
        raise ReattendError(f"{options.run} is of {task.name}, whose tokens nothing here turns into something to show.")
    module, _, name = MEDIA[task.target].rpartition(".")
    kind: type[Medium] = getattr(importlib.import_module(module), name)
    for option in _OPTIONS:
        if option not in kind.options and getattr(options, option) is not None:
            raise ReattendError(
                f"{option}={getattr(options, option)}: {options.run} is of {task.name}, which has no such option. "
                f"Its own: {' '.join(kind.options.values())}"
            )
    return kind(config, options, places)
