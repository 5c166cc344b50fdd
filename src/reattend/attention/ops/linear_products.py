"""Products of linear attention with gradients of their own: fewer passes over memory, nothing saved but the factors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.precision import without_autocast


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: Tensor) -> Tensor:
        normaliser = sums[..., -1:]
        # Below this the terms that a float keeps beside the sum are no longer normal floats.
        limits = torch.finfo(sums.dtype)
        zero = normaliser.abs() <= limits.tiny / limits.eps
        inverse = normaliser.masked_fill(zero, 1.0).reciprocal().masked_fill_(zero, 0.0)
        out = sums[..., :-1] * inverse
        ctx.save_for_backward(out, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        out, inverse = ctx.saved_tensors
        grad = grad * inverse
        return torch.cat([grad, -(grad * out).sum(-1, keepdim=True)], -1)


def normalise(sums: Tensor) -> Tensor:
    """The last column of `sums` (..., D + 1) divides the others.

    Where it is zero, or so close to the smallest float that its terms have lost their digits, the result is zero, with
    zero gradient.
    """
    out: Tensor = _Normalise.apply(sums)
    return out


class _SumsOverAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key_values = key.mT @ value
        ctx.save_for_backward(query, key, value, key_values)
        return query @ key_values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, key_values = ctx.saved_tensors
        with without_autocast(grad):
            of_key_values = query.mT @ grad
            return grad @ key_values.mT, value @ of_key_values.mT, key @ of_key_values


def sums_over_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """sum_j (query_i . key_j) value_j for (B, H, N, F), (B, H, M, F) and (B, H, M, D): (B, H, N, D)."""
    sums: Tensor = _SumsOverAll.apply(query, key, value)
    return sums


class _SumsOverPast(torch.autograd.Function):
    """With chunks of C tokens, S_c the sum of key^T value over the chunks before c, and A_c = tril(Q_c K_c^T):

        Y_c = Q_c S_c + A_c V_c.

    Backward, with G_c the gradient of Y_c, R_c the sum of query^T G over the chunks after c, and E_c = tril(G_c V_c^T):

        dQ_c = G_c S_c^T + E_c K_c,  dK_c = V_c R_c^T + E_c^T Q_c,  dV_c = K_c R_c + A_c^T G_c.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        before = sums_before(key.mT @ value)
        ctx.save_for_backward(query, key, value, before)
        return (query @ before).add_((query @ key.mT).tril_() @ value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, before = ctx.saved_tensors
        with without_autocast(grad):
            after = sums_before((query.mT @ grad).flip(2)).flip(2)
            similarity, of_similarity = (query @ key.mT).tril_(), (grad @ value.mT).tril_()
            return (
                (grad @ before.mT).add_(of_similarity @ key),
                (value @ after.mT).add_(of_similarity.mT @ query),
                (key @ after).add_(similarity.mT @ grad),
            )


def sums_over_past(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """sum_(j <= i) (query_i . key_j) value_j for (B, H, N, F), (B, H, N, F) and (B, H, N, D): (B, H, N, D)."""
    length = query.shape[2]
    chunks: Tensor = _SumsOverPast.apply(*(in_chunks(x, chunk_length(value)) for x in (query, key, value)))
    return chunks.flatten(2, 3)[:, :, :length]


def chunk_length(value: Tensor) -> int:
    """Number C of tokens in a chunk, from `value` (B, H, N, D): with C >= D the states (N/C, F, D) are no larger than
    the keys, and the C^2 products of a chunk cost no more than its state."""
    return min(max(32, value.shape[3]), value.shape[2])


def in_chunks(x: Tensor, chunk: int, padding: float = 0.0) -> Tensor:
    """(B, H, N, D) to (B, H, ceil(N / chunk), chunk, D), padded at the end."""
    num_chunks = -(-x.shape[2] // chunk)
    short = num_chunks * chunk - x.shape[2]
    if short:
        x = F.pad(x, (0, 0, 0, short), value=padding)
    chunks: Tensor = x.unflatten(2, (num_chunks, chunk))
    return chunks


def sums_before(chunks: Tensor) -> Tensor:
    """Sum of all earlier chunks; `chunks` has them in dimension 2, after batch and heads."""
    return F.pad(chunks[:, :, :-1].cumsum(2), (0, 0, 0, 0, 1, 0))
