"""The projection that convolves queries and keys over the grid."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.projections.conv2d import Conv2dProjection


def tokens(
    x: Tensor, source: Tensor, queries: list[bool], keys: list[bool], projection: Conv2dProjection
) -> tuple[Tensor, Tensor, Tensor]:
    """What queries, keys and values of one sample are linear in: the tokens (N, D) unchanged."""
    return x, source, source


def project(
    q: Tensor, k: Tensor, queries: list[bool], keys: list[bool], projection: Conv2dProjection
) -> tuple[Tensor, Tensor]:
    """Conv2D of queries and of keys (N, d) of one head of one sample. Primal-dual paper, Appendix G, Def 3."""
    return _convolve(q, queries, projection), _convolve(k, keys, projection)


def _convolve(x: Tensor, real: list[bool], projection: Conv2dProjection) -> Tensor:
    """sum_{o, p} w_op X(a + o - floor((s - 1) / 2), b + p - floor((s - 1) / 2)) over real tokens of the grid."""
    weight, prefix = projection.weight.double(), projection.prefix_tokens
    assert projection.grid is not None
    length = len(x) - prefix
    # The grid at its aspect ratio: height / width is as that of the one it was built for.
    height = next(a for a in range(1, length + 1) if a * a * projection.grid[1] == length * projection.grid[0])
    width = length // height
    rows = list(x[:prefix])
    for a in range(height):
        for b in range(width):
            row = torch.zeros_like(x[0])
            for o in range(len(weight)):
                for p in range(len(weight)):
                    above, left = a + o - (len(weight) - 1) // 2, b + p - (len(weight) - 1) // 2
                    j = prefix + above * width + left
                    if 0 <= above < height and 0 <= left < width and real[j]:
                        row = row + weight[o, p] * x[j]
            rows.append(row)
    return torch.stack(rows)
