"""Attention to the keys with the largest logits, block by block of queries, in memory linear in length.

On a CPU a block's logits are searched for the kept ones, and all that follows is sparse; elsewhere, and where a large
share is kept, it is dense within the block. Both are one operator to autograd and to `torch.compile`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from reattend.attention.ops.kept_logits import Kept, find_kept, kth_largest, sum_of_keys, sum_of_queries
from reattend.attention.ops.precision import without_autocast

P = ParamSpec("P")
T = TypeVar("T")

_LOGITS_PER_BLOCK = {"cpu": 2**21}
_LOGITS_PER_BLOCK_ELSEWHERE = 2**26


def _without_autocast(body: Callable[P, T]) -> Callable[P, T]:
    """The body of an operator, in which autocast is still on."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        query = next(argument for argument in args if isinstance(argument, Tensor))
        with without_autocast(query):
            return body(*args, **kwargs)

    return run


def top_k_attention(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, *, count: int, causal: bool = False
) -> Tensor:
    """out_i = sum_{j in S_i} exp(l_ij) v_j / sum_{j in S_i} exp(l_ij) with l_ij = q_i . k_j / sqrt(D).

    S_i holds the visible keys with l_ij >= t_i, the `count`-th largest logit of query i: so equal ones are kept. Logits
    and sums are float32 at least. The backward pass forms the logits again and needs t_i and the normaliser alone. The
    gradient goes through the kept logits.

    Args:
        q: (B, H, N, D).
        k: (B, H, M, D).
        v: (B, H, M, E).
        key_mask: (B, M), True at real keys.
        count: number of keys that a query keeps.
        causal: query i sees keys 0 to i.

    Returns:
        (B, H, N, E) in the type of `v`, zero for a query that sees no key.
    """
    out: Tensor = _attend(q, k, v, key_mask, count, causal)[0]
    return out


@torch.library.custom_op("reattend::top_k_attention", mutates_args=())
@_without_autocast
def _attend(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, count: int, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (B, H, N, E), thresholds and logarithms of the normalisers (B, H, N)."""
    query, key, value, real = _prepare(q, k, v, key_mask)
    out = query.new_empty(*query.shape[:2], v.shape[-1])
    threshold, log_normaliser = query.new_empty(query.shape[:2]), query.new_empty(query.shape[:2])
    for heads, rows, keys in _blocks(query, key, causal):
        logits = _logits(query, key, real, heads, rows, keys, causal)
        if _is_sparse(logits, count):
            kept, block_threshold = find_kept(logits, count)
            weights, block_normaliser = kept.softmax()
            block = sum_of_keys(kept, weights, value[heads, keys])
        else:
            block_threshold = kth_largest(logits, count)
            logits.masked_fill_(logits < block_threshold.unsqueeze(-1), -math.inf)
            block_normaliser = logits.logsumexp(-1)
            block = _weights(logits, block_normaliser) @ value[heads, keys]
        out[heads, rows] = block
        threshold[heads, rows] = block_threshold
        log_normaliser[heads, rows] = block_normaliser
    shape = q.shape[:3]
    return out.to(v.dtype).view(*shape, v.shape[-1]), threshold.view(shape), log_normaliser.view(shape)


@_attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, count: int, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _wide(q, k, v)
    out = v.new_empty(*q.shape[:3], v.shape[-1])
    return out, q.new_empty(q.shape[:3], dtype=wide), q.new_empty(q.shape[:3], dtype=wide)


@torch.library.custom_op("reattend::top_k_attention_backward", mutates_args=())
@_without_autocast
def _differentiate(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    threshold: Tensor,
    log_normaliser: Tensor,
    count: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in queries, keys and values."""
    query, key, value, real = _prepare(q, k, v, key_mask)
    g = grad.reshape(*query.shape[:2], v.shape[-1]).to(query.dtype)
    threshold, log_normaliser = threshold.view(query.shape[:2]), log_normaliser.view(query.shape[:2])
    in_query, in_key, in_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for heads, rows, keys in _blocks(query, key, causal):
        logits = _logits(query, key, real, heads, rows, keys, causal)
        block_q, block_g, limit = query[heads, rows], g[heads, rows], threshold[heads, rows].unsqueeze(-1)
        normaliser = log_normaliser[heads, rows]
        if _is_sparse(logits, count):
            kept = Kept.above(logits, limit)
            weights = kept.weights(normaliser)
            in_logits = kept.in_logits(weights, block_g, value[heads, keys])
            in_query[heads, rows] = sum_of_keys(kept, in_logits, key[heads, keys])
            in_key[heads, keys] += sum_of_queries(kept, in_logits, block_q)
            in_value[heads, keys] += sum_of_queries(kept, weights, block_g)
        else:
            weights = _weights(logits.masked_fill_(logits < limit, -math.inf), normaliser)
            in_weights = block_g @ value[heads, keys].mT
            in_logits = weights * (in_weights - (weights * in_weights).sum(-1, keepdim=True))
            in_query[heads, rows] = in_logits @ key[heads, keys]
            in_key[heads, keys] += in_logits.mT @ block_q
            in_value[heads, keys] += weights.mT @ block_g
    in_query /= math.sqrt(q.shape[-1])
    return (
        in_query.to(q.dtype).view(q.shape),
        in_key.to(k.dtype).view(k.shape),
        in_value.to(v.dtype).view(v.shape),
    )


@_differentiate.register_fake
def _(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    threshold: Tensor,
    log_normaliser: Tensor,
    count: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.count, ctx.causal = inputs
    ctx.save_for_backward(*tensors, *output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return (*_differentiate(grad, *ctx.saved_tensors, ctx.count, ctx.causal), None, None, None)


_attend.register_autograd(_backward, setup_context=_save)


def _wide(*tensors: Tensor) -> torch.dtype:
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _prepare(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries over sqrt(D), keys and values, (B H, N, D) without gaps, and the mask (B H, M)."""
    wide = _wide(q, k, v)
    query, key, value = (t.to(wide).flatten(0, 1).contiguous() for t in (q, k, v))
    return (
        query / math.sqrt(q.shape[-1]),
        key,
        value,
        None if key_mask is None else key_mask.repeat_interleave(q.shape[1], 0),
    )


def _blocks(query: Tensor, key: Tensor, causal: bool) -> Iterator[tuple[slice, slice, slice]]:
    """Heads, queries and keys of each block: some queries of one head, or all queries of some heads."""
    num_heads, num_queries, num_keys = *query.shape[:2], key.shape[1]
    size = _LOGITS_PER_BLOCK.get(query.device.type, _LOGITS_PER_BLOCK_ELSEWHERE)
    rows = max(1, min(num_queries, size // max(num_keys, 1)))
    heads = max(1, size // max(num_queries * num_keys, 1))
    for head in range(0, num_heads, heads):
        for row in range(0, num_queries, rows):
            stop = min(row + rows, num_queries)
            yield slice(head, head + heads), slice(row, stop), slice(0, stop if causal else num_keys)


def _logits(
    query: Tensor, key: Tensor, real: Tensor | None, heads: slice, rows: slice, keys: slice, causal: bool
) -> Tensor:
    """Logits (h, n, m) of one block, -inf where a query does not see a key."""
    logits = query[heads, rows] @ key[heads, keys].mT
    if real is not None:
        logits.masked_fill_(~real[heads, None, keys], -math.inf)
    if causal:
        extent = rows.stop - rows.start
        future = torch.ones(extent, extent, dtype=torch.bool, device=logits.device).triu(1)
        logits[..., rows].masked_fill_(future, -math.inf)
    return logits


def _is_sparse(logits: Tensor, count: int) -> bool:
    return logits.device.type == "cpu" and 4 * count <= logits.shape[-1]


def _weights(logits: Tensor, log_normaliser: Tensor) -> Tensor:
    """exp(l - log Z); a query that sees no key has log Z = -inf, and weights of zero."""
    return (logits - log_normaliser.clamp(min=torch.finfo(logits.dtype).min).unsqueeze(-1)).exp_()
