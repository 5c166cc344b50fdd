"""Data module of texts by bytes or words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from reattend.config.limits import Count
from reattend.data.language.blocks import TokenBlocks
from reattend.data.language.texts import make_text
from reattend.data.sampled import SampledData, Samples
from reattend.errors import ReattendError


class TextData(SampledData):
    """Training, validation and test split of a text, byte by byte or word by word, through a memory map.

    `y` has tokens (B, N), int64, with -1 at what is no target; `x` is the same, or the tokens before them where the
    text says what its first one follows (`TokenBlocks.start`); `padding_mask` is None. Pieces lie side by side;
    `further_tests` has test once more with a sliding context, in which each token after the first N has at least
    N - `sliding_stride` tokens before it. The text's own validation split selects, unless test is to.

    The trainer has to leave the samplers as they are (`use_distributed_sampler=False`).

    Attributes:
        train, validation, test: the splits; `validation` is None with `selection="test"`.
        shape: `vocabulary`, `max_length` and `num_outputs`; `start_token` where `x` are the tokens before those of `y`.
        kind: "language_modelling".
        checksum: SHA-256 of the tokens.
        origin: "stand-in", or the file.
        sizes: pieces of each split that is used.

    Args:
        dataset: see `make_text`.
        root: folder of all data.
        max_length: tokens N of a piece.
        file: path of a text of one's own, or of a folder with three files of words.
        sliding_stride: tokens that each piece of the sliding evaluation adds; None for a half of N.
        standin: use the generated stand-in instead.
        selection: what `val_dataloader` gives.
        validation_fraction, split_seed: nothing has to be held out.
        batch_size: global, over all devices and accumulated micro-batches.
        steps_per_epoch: see `TrainSampler`.
        seed: of the run; with the epoch it fixes the order of training samples.
        devices: number of processes that train together.
        accumulation: micro-batches per optimiser step.

    Raises:
        ReattendError: `batch_size` does not divide, or data is missing or damaged.
    """

    kind = "language_modelling"
    gives = ("vocabulary", "max_length", "num_outputs")
    train: TokenBlocks
    validation: TokenBlocks | None
    test: TokenBlocks

    def __init__(
        self,
        dataset: str | None,
        *,
        root: str | Path,
        batch_size: int,
        seed: int,
        max_length: Count,
        file: str | None = None,
        sliding_stride: Count | None = None,
        steps_per_epoch: int | None = None,
        standin: bool = False,
        selection: Literal["test", "validation"] = "validation",
        validation_fraction: float = 0.0,
        split_seed: int = 0,
        devices: int = 1,
        accumulation: int = 1,
    ) -> None:
        super().__init__(batch_size, seed, steps_per_epoch, devices, accumulation)
        text = make_text(dataset, root, file, standin)
        opened = text.open()
        self.checksum = opened.checksum
        self.origin = "stand-in" if standin else str(text.find())
        self.shape = text.shape(opened.vocabulary, max_length)
        self._stride = max(1, max_length // 2) if sliding_stride is None else sliding_stride
        if self._stride > max_length:
            raise ReattendError(
                f"task.data_options.sliding_stride={self._stride} leaves tokens out: at most max_length={max_length}."
            )
        blocks = {
            split: TokenBlocks(tokens, max_length, max_length, text.start) for split, tokens in opened.splits.items()
        }
        self.train, self.test = blocks["train"], blocks["test"]
        self.validation = blocks["validation"] if selection == "validation" else None

    def further_tests(self) -> dict[str, Samples]:
        """Test with a sliding context, "test_sliding"."""
        return {"test_sliding": replace(self.test, stride=self._stride)}
