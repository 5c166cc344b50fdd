"""Downsampling of the keys or values of one head of one sample."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.scaled_heads import ScaledHeads


def windows(real: list[bool], scale: int, prefix: int) -> list[list[int]]:
    """Indices of the real tokens of each window of `scale` tokens, after `prefix` tokens that each have their own."""
    length = len(real)
    starts = range(prefix, length, scale)
    spans = [[token] for token in range(min(prefix, length))]
    spans += [list(range(start, min(start + scale, length))) for start in starts]
    kept = [[token for token in span if real[token]] for span in spans]
    return [span for span in kept if span]


def pool(x: Tensor, real: list[bool], scale: int, prefix: int, pooling: str, weights: Tensor | None = None) -> Tensor:
    """One row per window that has a real token, from x (M, D). Primal-dual paper, Eqn 25.

    `mean`: their mean. `stride`: the first. `conv`: with n real tokens in a window of s, s / n times their sum, each
    times the row of `weights` (s, D) at its place in the window; prefix tokens and whole heads as they are.
    """
    rows = []
    for span in windows(real, scale, prefix):
        if pooling == "mean":
            rows.append(x[span].mean(0))
        elif pooling == "stride" or weights is None or span[0] < prefix:
            rows.append(x[span[0]])
        else:
            places = [(token - prefix) % scale for token in span]
            rows.append(scale / len(span) * (weights[places] * x[span]).sum(0))
    return torch.stack(rows) if rows else x[:0]


def filters(scaled_heads: ScaledHeads, head: int) -> list[Tensor | None]:
    """The weights (s, D) of the tokens of a window in the keys and the values of one head, where it is convolved."""
    scale = scaled_heads.scales[head]
    if scaled_heads.pooling != "conv" or scale == 1:
        return [None, None]
    place = scaled_heads.scales[:head].count(scale)
    return [part[str(scale)][place].double() for part in (scaled_heads.key_filters, scaled_heads.value_filters)]
