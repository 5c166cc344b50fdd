"""The convolutional projections of CvT."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.projections.cvt import CvtProjection


def tokens(
    x: Tensor, source: Tensor, queries: list[bool], keys: list[bool], projection: CvtProjection
) -> tuple[Tensor, Tensor, Tensor]:
    """What queries, keys and values of one sample are linear in: depth-wise convolutions of the tokens (N, D).

    CvT, Eqn 2, without batch normalisation.
    """
    for_q, for_k, for_v = projection.weight.double()
    return (
        _convolve(x, queries, for_q, projection),
        _convolve(source, keys, for_k, projection),
        _convolve(source, keys, for_v, projection),
    )


def project(
    q: Tensor, k: Tensor, queries: list[bool], keys: list[bool], projection: CvtProjection
) -> tuple[Tensor, Tensor]:
    """Queries (N, d) and keys (N, d) of one head of one sample, unchanged."""
    return q, k


def _convolve(x: Tensor, real: list[bool], weight: Tensor, projection: CvtProjection) -> Tensor:
    """sum_o w(o) * x_{i + o} over the real tokens of the grid or sequence, o counted from the kernel's centre."""
    prefix, length = projection.prefix_tokens, len(x) - projection.prefix_tokens
    if projection.grid is None:
        weight, height, width = weight[:, None], 1, length
    else:
        ratio = projection.grid
        height = next(a for a in range(1, length + 1) if a * a * ratio[1] == length * ratio[0])
        width = length // height
    rows = list(x[:prefix])
    for i in range(length):
        row = torch.zeros_like(x[0])
        for o in range(weight.shape[1]):
            for p in range(weight.shape[2]):
                above = i // width + o - (weight.shape[1] - 1) // 2
                left = i % width + p - (weight.shape[2] - 1) // 2
                j = prefix + above * width + left
                if 0 <= above < height and 0 <= left < width and real[j]:
                    row = row + weight[:, o, p] * x[j]
        rows.append(row)
    return torch.stack(rows)
