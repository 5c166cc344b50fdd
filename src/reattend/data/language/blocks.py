"""Pieces of a long row of tokens, as samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reattend.data.language.corpus import pieces
from reattend.data.sampled import Batch
from reattend.data.samplers import MicroBatch

IGNORED = -1  # a target that is not evaluated


@dataclass(frozen=True)
class TokenBlocks:
    """Pieces of `length` tokens that begin every `stride` tokens, indexed by whole micro-batches.

    Every token is the target of exactly one piece: of a piece that begins inside of the one before, only the tokens
    that the other does not have. The last piece may be shorter; it is padded with token 0, which is no target.

    Attributes:
        tokens: all of a split, (T,), often a memory map.
        length: tokens N of a piece.
        stride: tokens between two beginnings, at most N; N for pieces side by side.
        start: id of the token before the first of the split. With it a piece is told the token before it: `x` has the
            tokens before those of `y` (fairseq's blocks); without it `x` has the same tokens as `y`.
    """

    tokens: NDArray[Any]
    length: int
    stride: int
    start: int | None = None

    def __len__(self) -> int:
        return pieces(len(self.tokens), self.length, self.stride)

    def __getitem__(self, batch: MicroBatch) -> Batch:
        """`x` (B, N), `padding_mask` None, `y` (B, N) with `IGNORED` at what is no target, `weight`, `global_size`."""
        x = np.zeros((len(batch.indices), self.length), np.int64)
        y = np.full_like(x, IGNORED)
        for row, index in enumerate(batch.indices.tolist()):
            piece = self.tokens[index * self.stride : index * self.stride + self.length]
            if self.start is None:
                x[row, : len(piece)] = piece
            else:
                x[row, 0] = self.tokens[index * self.stride - 1] if index else self.start
                x[row, 1 : len(piece)] = piece[:-1]
            known = self.length - self.stride if index else 0
            y[row, known : len(piece)] = piece[known:]
        return {
            "x": torch.from_numpy(x),
            "padding_mask": None,
            "y": torch.from_numpy(y),
            "weight": batch.weight,
            "global_size": batch.global_size,
        }
