"""Sums of values whose weights are products of queries and embeddings of relative positions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 64  # Queries on the last axis that are taken together.


def relative_sums(q: Tensor, table: Tensor, v: Tensor, extents: Sequence[int]) -> Tensor:
    """y_n = sum_m (q_n . e_{m-n}) v_m over positions m of a grid.

    A block of queries on one line of the grid meets the embeddings of all differences that it needs in one matrix
    product; the products are then read with a stride that is one short, which puts m in place of m - n. No embedding is
    copied for a pair, and as weights are formed block by block, and again in the backward pass, memory is linear in N.

    Args:
        q: (B, H, N, K).
        table: (2 n_1 - 1, ..., 2 n_r - 1, K), e for the differences -(n_i - 1) to n_i - 1 on each axis.
        v: (B, N, D), the same for all heads; zero at padding.
        extents: n_1, ..., n_r, whose product is N.

    Returns:
        (B, H, N, D).
    """
    y: Tensor = _RelativeSums.apply(q, table, v, tuple(extents))
    return y


class _RelativeSums(torch.autograd.Function):
    """Keeps the inputs alone."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, table: Tensor, v: Tensor, extents: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(q, table, v)
        ctx.extents = extents
        y = q.new_empty(*q.shape[:3], v.shape[2])
        for rows, differences in _blocks(extents):
            weights = _weights(q[:, :, rows], table[differences], extents)
            y[:, :, rows] = (weights.flatten(1, 2) @ v).unflatten(1, weights.shape[1:3])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, table, v = ctx.saved_tensors
        of_q, of_table, of_v = torch.empty_like(q), torch.zeros_like(table), torch.zeros_like(v)
        for rows, differences in _blocks(ctx.extents):
            block, embeddings = q[:, :, rows], table[differences]
            weights = _weights(block, embeddings, ctx.extents)
            g = grad[:, :, rows].flatten(1, 2)
            of_v += weights.flatten(1, 2).mT @ g
            of_products = q.new_zeros(*block.shape[:3], embeddings[..., 0].numel())
            skewed = _skewed(of_products, ctx.extents)
            skewed.copy_((g @ v.mT).view(skewed.shape))
            of_q[:, :, rows] = of_products @ embeddings.flatten(0, -2)
            of_embeddings = of_products.flatten(0, 2).mT @ block.flatten(0, 2)
            of_table[differences] += of_embeddings.view(embeddings.shape)
        return of_q, of_table, of_v, None


def _blocks(extents: tuple[int, ...]) -> Iterator[tuple[slice, tuple[slice, ...]]]:
    """Queries of each block, and the part of the table that has their differences to all positions."""
    *lines, width = extents
    for number, place in enumerate(itertools.product(*map(range, lines))):
        along = [slice(n - 1 - a, 2 * n - 1 - a) for n, a in zip(lines, place, strict=True)]
        for start in range(0, width, BLOCK):
            stop = min(start + BLOCK, width)
            first = number * width
            yield slice(first + start, first + stop), (*along, slice(width - stop, 2 * width - 1 - start))


def _weights(q: Tensor, embeddings: Tensor, extents: tuple[int, ...]) -> Tensor:
    """q_n . e_{m-n}, (B, H, L, N), for the queries (B, H, L, K) of a block."""
    return _skewed(q @ embeddings.flatten(0, -2).mT, extents).flatten(3)


def _skewed(products: Tensor, extents: tuple[int, ...]) -> Tensor:
    """View (B, H, L, lines, width) of a new (B, H, L, lines * (width + L - 1)): row l is read from L - 1 - l on."""
    batch, heads, length, row = products.shape
    lines, width = math.prod(extents[:-1]), extents[-1]
    return products.as_strided(
        (batch, heads, length, lines, width),
        (heads * length * row, length * row, row - 1, width + length - 1, 1),
        length - 1,
    )
