"""Linear attention of feature vectors: over all keys, or over the past in three forms that are equal to each other."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.contract import State
from reattend.attention.ops.linear_products import (
    chunk_length,
    in_chunks,
    normalise,
    sums_over_all,
    sums_over_past,
)
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.triton_linear_attention import serves, triton_sums_over_past

CausalForm = Literal["chunked", "cumsum", "recurrent"]


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    normalised: bool = True,
    form: CausalForm = "chunked",
    key_log_scale: Tensor | None = None,
) -> Tensor:
    """h_i = sum_j a_ij v_j / sum_j a_ij with a_ij = exp(s_j) query_i . key_j, over all j, or over j <= i if causal.

    Time and memory are linear in length. Without normalisation the denominator is left out. A query whose normaliser is
    zero, or so close to the smallest float that its terms have lost their digits, gets zero, with zero gradient.

    Args:
        query: (B, H, N, F), float32 or float64; where normalised, a positive factor per token cancels.
        key: (B, H, M, F) of the same type, zero at padding.
        value: (B, H, M, D).
        causal: query i sees the keys up to i; M is N.
        normalised: divide by the sum of the weights.
        form: how the causal sums are formed; the results are equal. `chunked`: prefix sums between chunks of C tokens,
            masked products within, O(N (C + F + D)) memory. `cumsum`: prefix sums of the outer products of all tokens,
            O(N F D) memory. `recurrent`: token after token.
        key_log_scale: s (B, H, M, 1), -inf at padding, a constant to autograd; None stands for zero. Only differences
            count where normalised; the causal forms take every exponential relative to the largest s so far.

    Returns:
        (B, H, N, D) in the type of `query`. Causal outputs do not change by a bit with later tokens.
    """
    with without_autocast(query):
        if causal and form == "chunked" and key_log_scale is None and serves(query, value):
            return _finish(triton_sums_over_past(query, key, value, normalised), None, normalised)
        value, scale = _augmented(value.to(query.dtype), normalised), _constant(key_log_scale)
        sums, shift = (_CAUSAL[form] if causal else _over_all)(query, key, value, scale)
        return _finish(sums, shift, normalised)


def initial_state(
    batch: int,
    heads: int,
    features: int,
    head_dim: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    normalised: bool = True,
    log_scaled: bool = False,
) -> State:
    """State of `linear_step` before the first token.

    `key_values` (B, H, F, D) is the sum of key v^T, with one more column, the sum of the keys, where normalised; with
    `log_scaled` it is relative to exp of `key_max` (B, H, 1, 1), the largest s so far. The type is float32 at least.
    """
    wide = torch.promote_types(dtype, torch.float32)
    state = {"key_values": torch.zeros(batch, heads, features, head_dim + normalised, device=device, dtype=wide)}
    if log_scaled:
        state["key_max"] = torch.full((batch, heads, 1, 1), -math.inf, device=device, dtype=wide)
    return state


def linear_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: State,
    *,
    normalised: bool = True,
    key_log_scale: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Output (B, H, 1, D) for one more token and the state after it: the causal `linear_attention`, token by token.

    Args:
        query: (B, H, 1, F), float32 or float64.
        key: (B, H, 1, F).
        value: (B, H, 1, D).
        state: from `initial_state`, with `log_scaled` where there may be a `key_log_scale`, or from the step before.
        normalised: as in `initial_state`.
        key_log_scale: (B, H, 1, 1).
    """
    with without_autocast(query):
        value, scale = _augmented(value.to(query.dtype), normalised), _constant(key_log_scale)
        sums, shift, state = _step(query, key, value, state, scale)
        return _finish(sums, shift, normalised), state


def _augmented(value: Tensor, normalised: bool) -> Tensor:
    """`value`, where normalised with a last column of ones, whose weighted sum is the normaliser."""
    return F.pad(value, (0, 1), value=1.0) if normalised else value


def _constant(scale: Tensor | None) -> Tensor | None:
    return None if scale is None else scale.detach()


def _finish(sums: Tensor, shift: Tensor | None, normalised: bool) -> Tensor:
    """The output from sums over the keys, which are relative to exp(shift)."""
    if normalised:
        return normalise(sums)
    return sums if shift is None else sums * shift.exp()


def _finite(largest: Tensor) -> Tensor:
    """What exponents are relative to: the largest one, zero where there is none yet."""
    return largest.masked_fill(largest == -math.inf, 0.0)


def _over_all(query: Tensor, key: Tensor, value: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if scale is None:
        return sums_over_all(query, key, value), None
    shift = _finite(scale.amax(-2, keepdim=True))
    return sums_over_all(query, key * (scale - shift).exp(), value), shift


def _step(
    query: Tensor, key: Tensor, value: Tensor, state: State, scale: Tensor | None
) -> tuple[Tensor, Tensor | None, State]:
    if scale is None:
        key_values = state["key_values"] + key.mT * value
        unscaled = {"key_max": state["key_max"]} if "key_max" in state else {}
        return query @ key_values, None, {"key_values": key_values} | unscaled
    key_max = torch.maximum(state["key_max"], scale)
    shift = _finite(key_max)
    key_values = state["key_values"] * (state["key_max"] - shift).exp() + (key * (scale - shift).exp()).mT * value
    return query @ key_values, shift, {"key_values": key_values, "key_max": key_max}


def _recurrent(query: Tensor, key: Tensor, value: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    sizes = (*query.shape[:2], query.shape[3], value.shape[3], query.device, query.dtype)
    state = initial_state(*sizes, normalised=False, log_scaled=scale is not None)
    scales = [None] * query.shape[2] if scale is None else scale.split(1, 2)
    sums, shifts = [], []
    for token in zip(*(x.split(1, 2) for x in (query, key, value)), scales, strict=True):
        q, k, v, s = token
        out, shift, state = _step(q, k, v, state, s)
        sums.append(out)
        shifts += [] if shift is None else [shift]
    return torch.cat(sums, 2), torch.cat(shifts, 2) if shifts else None


def _cumsum(query: Tensor, key: Tensor, value: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    key_values = key.unsqueeze(-1) * value.unsqueeze(-2)
    if scale is None:
        return (query.unsqueeze(-2) @ key_values.cumsum(2)).squeeze(-2), None
    # Sums over the last 1, 2, 4, ... tokens, each relative to its own largest exponent and so to no later one.
    key_values, largest = key_values * (scale - _finite(scale)).exp().unsqueeze(-1), scale
    span = 1
    while span < query.shape[2]:
        before = F.pad(largest[:, :, :-span], (0, 0, span, 0), value=-math.inf)
        earlier = F.pad(key_values[:, :, :-span], (0, 0, 0, 0, span, 0))
        both = torch.maximum(largest, before)
        shares = [(x - _finite(both)).exp().unsqueeze(-1) for x in (largest, before)]
        key_values, largest = key_values * shares[0] + earlier * shares[1], both
        span *= 2
    return (query.unsqueeze(-2) @ key_values).squeeze(-2), _finite(largest)


def _chunked(query: Tensor, key: Tensor, value: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if scale is None:
        return sums_over_past(query, key, value), None
    length, chunk = query.shape[2], chunk_length(value)
    query, key, value = (in_chunks(x, chunk) for x in (query, key, value))
    scale = in_chunks(scale, chunk, -math.inf)
    largest = scale.flatten(2, 3).cummax(2).values.view_as(scale)
    shift = _finite(largest)
    at_end = largest[..., -1:, :]
    at_start = F.pad(at_end[:, :, :-1], (0, 0, 0, 0, 1, 0), value=-math.inf)
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).triu(1)
    similarity = (query @ key.mT) * (scale.mT - shift).masked_fill(future, -math.inf).exp()
    of_chunks = (key * (scale - _finite(at_end)).exp()).mT @ value
    before = _decayed_sums_before(of_chunks, (at_start - _finite(at_end)).exp())
    sums = (query @ before) * (at_start - shift).exp() + similarity @ value
    return sums.flatten(2, 3)[:, :, :length], shift.flatten(2, 3)[:, :, :length]


def _decayed_sums_before(chunks: Tensor, decay: Tensor) -> Tensor:
    """S_(c+1) = decay_c S_c + chunk_c from S_0 = 0, for chunks in dimension 2."""
    state, states = torch.zeros_like(chunks[:, :, 0]), []
    for chunk, factor in zip(chunks.unbind(2), decay.unbind(2), strict=True):
        states.append(state)
        state = state * factor + chunk
    return torch.stack(states, 2)


_CAUSAL = {"chunked": _chunked, "cumsum": _cumsum, "recurrent": _recurrent}
