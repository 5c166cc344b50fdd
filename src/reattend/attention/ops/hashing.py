"""Locality-sensitive hashing: buckets that vectors of a small angle are likely to share, and tokens sorted by them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from reattend.attention.ops.precision import without_autocast


@torch.no_grad()
def cross_polytope(x: Tensor, rotations: Tensor, factors: Sequence[int]) -> Tensor:
    """Buckets argmax([x R; -x R]), with several factors the mixed-radix number of one such digit per factor.

    Andoni et al. 2015; Reformer (2001.04451), section 2.

    Args:
        x: (B, H, N, D).
        rotations: (R, H, D, sum(factors) / 2), a matrix per round of hashing, head and factor.
        factors: even number of values of each digit, the lowest digit first.

    Returns:
        (R, B, H, N), from 0 to the product of `factors`, computed in float32 at least.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    rounds = []
    with without_autocast(x):
        for rotation in rotations.to(wide).unbind(0):
            buckets, unit = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device), 1
            for rotated, factor in zip(
                (x.to(wide) @ rotation).split([f // 2 for f in factors], -1), factors, strict=True
            ):
                largest, smallest = rotated.max(-1), rotated.min(-1)
                opposite = -smallest.values > largest.values
                digit = torch.where(opposite, smallest.indices + factor // 2, largest.indices)
                buckets, unit = buckets + unit * digit, unit * factor
            rounds.append(buckets)
    return torch.stack(rounds)


@torch.no_grad()
def sign_codes(x: Tensor, hyperplanes: Tensor) -> Tensor:
    """Codes of the signs of x . r, one bit for each of the hyperplanes r: equal with probability 1 - angle / pi each.

    Charikar 2002; YOSO (2111.09714), section 3.

    Args:
        x: (B, H, N, D).
        hyperplanes: (R, H, D, bits).

    Returns:
        (R, B, H, N), from 0 to 2^bits, computed in float32 at least.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    places = 2 ** torch.arange(hyperplanes.shape[-1], device=x.device)
    with without_autocast(x):
        return torch.stack([((x.to(wide) @ r > 0) * places).sum(-1) for r in hyperplanes.to(wide).unbind(0)])


@torch.no_grad()
def order_by_bucket(buckets: Tensor, num_buckets: int, real: Tensor | None = None) -> Tensor:
    """Tokens sorted by bucket and within a bucket by position; padding comes last.

    Args:
        buckets: (R, B, H, N).
        num_buckets: the buckets are below it.
        real: (B, N), True at real tokens.

    Returns:
        (R, B, H, N), the index of the token at each place.
    """
    length = buckets.shape[-1]
    if real is not None:
        buckets = buckets.masked_fill(~real[:, None], num_buckets)
    return (buckets * length + torch.arange(length, device=buckets.device)).sort(-1).indices


def bucket_factors(length: int, chunk_size: int) -> list[int]:
    """Factors of the number of buckets for `length` tokens: two buckets a chunk, rounded down to a power of two.

    Chunks of twice the average bucket are the paper's choice (2001.04451, section 2). Beyond 128 buckets the hash is
    made of two digits, as in the published code: one argmax over all of them would cost time N^2.
    """
    exponent = max(1, math.floor(math.log2(max(2 * (length // chunk_size), 2))))
    return [2**exponent] if exponent <= 7 else [2 ** (exponent // 2), 2 ** (exponent - exponent // 2)]
