"""Downsampling of the keys or values of one head of one sample."""

from __future__ import annotations

import torch
from torch import Tensor


def windows(real: list[bool], scale: int, prefix: int) -> list[list[int]]:
    """Indices of the real tokens of each window of `scale` tokens, after `prefix` tokens that each have their own."""
    length = len(real)
    starts = range(prefix, length, scale)
    spans = [[token] for token in range(min(prefix, length))]
    spans += [list(range(start, min(start + scale, length))) for start in starts]
    kept = [[token for token in span if real[token]] for span in spans]
    return [span for span in kept if span]


def pool(x: Tensor, real: list[bool], scale: int, prefix: int, pooling: str) -> Tensor:
    """One row per window that has a real token, from x (M, D): their mean, or the first. Primal-dual paper, Eqn 25."""
    rows = [x[span].mean(0) if pooling == "mean" else x[span[0]] for span in windows(real, scale, prefix)]
    return torch.stack(rows) if rows else x[:0]
