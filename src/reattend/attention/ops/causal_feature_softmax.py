"""Sums over features of softmaxes over the past, each feature with a softmax of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.cumulative_logsumexp import cumulative_logsumexp, cumulative_logsumexp_gradient

CHUNK = 64


def causal_feature_softmax(query: Tensor, logits: Tensor, value: Tensor) -> Tensor:
    """h_i = sum_c query_ic sum_{j<=i} exp(logits_jc - z_ic) v_j with z_ic = log sum_{j<=i} exp(logits_jc).

    Linear in time and memory. A weight is exp(logits_j - z_i) = exp(logits_j - z_m) exp(z_m - z_i) for any m from j to
    i, two factors of at most 1. So the first half of a block meets its second half in one matrix product, with m in
    between; blocks of 2, 4, ... tokens do so up to a chunk, and from there on sums over whole chunks are passed on. As
    blocks grow their keys and queries are moved to the new m by one more factor of at most 1 per block.

    Args:
        query: (B, H, N, F), float32 or float64.
        logits: (B, H, N, F), finite; far below all others at padding.
        value: (B, H, N, D), zero at padding.

    Returns:
        (B, H, N, D). No exponent is positive, and outputs do not change by a bit with later tokens. The relative error
        of a weight is the rounding of z.
    """
    length = query.shape[2]
    # To whole chunks, or for a short sequence to the one chunk whose blocks can be halved down to a token.
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    short = -length % chunk
    if short:
        query, value = F.pad(query, (0, 0, 0, short)), F.pad(value, (0, 0, 0, short))
        logits = F.pad(logits, (0, 0, 0, short), value=_lowest(logits))
    out: Tensor = _CausalFeatureSoftmax.apply(query.contiguous(), logits.contiguous(), value.contiguous(), chunk)
    return out[:, :, :length]


class _CausalFeatureSoftmax(torch.autograd.Function):
    """With P_j = exp(logits_j - z_m), R_i = exp(z_m - z_i), the gradients in P and query * R at every m, times these,
    sum to those in logits and query, as long as z is held. As z_i only divides query_i, its gradient is minus the
    product of query_i and the query's gradient."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, logits: Tensor, value: Tensor, chunk: int) -> Tensor:
        sums = cumulative_logsumexp(logits)
        ctx.save_for_backward(query, logits, value, sums)
        ctx.chunk = chunk
        before = _shifted(sums, _lowest(sums))
        key, reach = (logits - sums).exp_(), (before - sums).exp_()
        out = _dot(query, key) * value
        half = 1
        while half < chunk:
            early, seen = _first(key, half), _first(value, half)
            late = _second(query, half) * _second(reach, half)
            _second(out, half).add_(_weighted(_similarity(late, early), seen))
            _grow(key, reach, sums, before, half)
            half *= 2
        late, key, value = (x.unflatten(2, (-1, chunk)) for x in (query * reach, key, value))
        states = _running(key.mT @ value, sums[:, :, chunk - 1 :: chunk])
        return out.add_((late @ _shifted(states, 0.0)).flatten(2, 3))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, logits, value, sums = ctx.saved_tensors
        chunk = ctx.chunk
        grad = grad.contiguous()
        before = _shifted(sums, _lowest(sums))
        key, reach = (logits - sums).exp_(), (before - sums).exp_()
        of_value, of_query = _dot(query, key) * grad, _dot(grad, value) * key
        of_logits = of_query * query
        half = 1
        while half < chunk:
            early, seen, cotangent = _first(key, half), _first(value, half), _second(grad, half)
            late = _second(query, half) * _second(reach, half)
            of_similarity = _similarity(cotangent, seen)
            _first(of_value, half).add_(_weighted(_similarity(late, early).mT, cotangent))
            _second(of_query, half).addcmul_(_weighted(of_similarity, early), _second(reach, half))
            _first(of_logits, half).addcmul_(_weighted(of_similarity.mT, late), early)
            _grow(key, reach, sums, before, half)
            half *= 2
        late, early, seen, cotangent = (x.unflatten(2, (-1, chunk)) for x in (query * reach, key, value, grad))
        ends = sums[:, :, chunk - 1 :: chunk]
        states = _shifted(_running(early.mT @ seen, ends), 0.0)
        after = _running(_shifted((late.mT @ cotangent).flip(2), 0.0), -ends.flip(2)).flip(2)
        of_value.add_((early @ after).flatten(2, 3))
        of_query.addcmul_((cotangent @ states.mT).flatten(2, 3), reach)
        of_logits.addcmul_((seen @ after.mT).flatten(2, 3), key)
        of_logits.sub_(cumulative_logsumexp_gradient(of_query * query, logits, sums))
        return of_query, of_logits, of_value, None


def _lowest(x: Tensor) -> float:
    """Far below all logits, and so that the difference of two such is finite."""
    return torch.finfo(x.dtype).min / 4


def _shifted(x: Tensor, first: float) -> Tensor:
    """`x` one later in dimension 2."""
    return F.pad(x[:, :, :-1], (0, 0) * (x.ndim - 3) + (1, 0), value=first)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, keepdim=True)


def _similarity(x: Tensor, y: Tensor) -> Tensor:
    """x y^T; single vectors are too small for a matrix product."""
    return _dot(x, y) if x.shape[-2] == 1 else x @ y.mT


def _weighted(weights: Tensor, x: Tensor) -> Tensor:
    return weights * x if x.shape[-2] == 1 else weights @ x


def _first(x: Tensor, half: int) -> Tensor:
    """First half of each block of 2 `half` tokens: a view (B, H, N / 2 half, half, F)."""
    first: Tensor = x.unflatten(2, (-1, 2, half))[:, :, :, 0]
    return first


def _second(x: Tensor, half: int) -> Tensor:
    second: Tensor = x.unflatten(2, (-1, 2, half))[:, :, :, 1]
    return second


def _grow(key: Tensor, reach: Tensor, sums: Tensor, before: Tensor, half: int) -> None:
    """Makes P relative to the end of the block of 2 `half` tokens, and R to the token before it, in place."""
    middle, end = _first(sums, half)[..., -1:, :], _second(sums, half)[..., -1:, :]
    _first(key, half).mul_((middle - end).exp())
    _second(reach, half).mul_((_first(before, half)[..., :1, :] - middle).exp())


def _running(states: Tensor, at: Tensor) -> Tensor:
    """S_n = state_n + exp(at_{n-1} - at_n) S_{n-1} over chunks, in dimension 2: sums over 1, 2, 4, ... are joined."""
    span = 1
    while span < states.shape[2]:
        decay = (at[:, :, :-span] - at[:, :, span:]).exp().unsqueeze(-1)
        states = torch.cat([states[:, :, :span], states[:, :, span:] + decay * states[:, :, :-span]], 2)
        span *= 2
    return states
