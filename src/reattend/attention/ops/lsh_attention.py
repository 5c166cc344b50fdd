"""Softmax attention within chunks of tokens that several rounds of hashing have sorted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from reattend.attention.ops.lsh_chunks import is_real, rounds


def lsh_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    buckets: Tensor,
    num_real: Tensor | None,
    *,
    chunk_size: int,
    causal: bool,
    across_buckets: bool,
    count_duplicates: bool,
) -> Tensor:
    """Attention of each token to its own chunk of the sorted tokens and the one before, all rounds in one softmax.

        o_i = sum_j N_ij exp(q_i . k_j) v_j / sum_j N_ij exp(q_i . k_j)

    N_ij counts the rounds in which i sees j; j = i is left out, unless i sees nothing else: then o_i = v_i. Memory is
    linear in length: logits exist for some rows of one round at a time, and are computed again for the gradient.

    Args:
        q: (B, H, N, D), float32 or float64.
        k: (B, H, N, D).
        v: (B, H, N, D).
        order: (R, B, H, N), tokens as each round sorts them, padding last.
        buckets: (R, B, H, N), the bucket of each token.
        num_real: (B,), number of real tokens; None if all are.
        chunk_size: number of sorted tokens in a chunk.
        causal: a token sees earlier ones only.
        across_buckets: a token sees other buckets in its chunks, too.
        count_duplicates: N_ij as above; otherwise every pair that meets counts once.

    Returns:
        (B, H, N, D), zero at padding.
    """
    shape, rows = q.shape, q.shape[0] * q.shape[1]
    if num_real is not None:
        num_real = num_real.repeat_interleave(shape[1])
    out: Tensor = _attend(
        *(x.reshape(rows, *shape[2:]) for x in (q, k, v)),
        *(x.flatten(1, 2) for x in (order, buckets)),
        num_real,
        chunk_size,
        causal,
        across_buckets,
        count_duplicates,
    )[0]
    return out.view(shape)


def _slices(order: Tensor, size: int) -> Iterator[slice]:
    """Rows that are worked on at a time: their logits stay in a processor's cache, and fill a GPU."""
    rows, length = order.shape[1:]
    at_once = 2**21 if order.device.type == "cpu" else 2**27
    step = max(1, at_once // (2 * size * (length + size)))
    for start in range(0, rows, step):
        yield slice(start, start + step)


@torch.library.custom_op("reattend::lsh_attention", mutates_args=())
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    buckets: Tensor,
    num_real: Tensor | None,
    chunk_size: int,
    causal: bool,
    across_buckets: bool,
    count_duplicates: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs (S, N, D) and log of the normalisers (S, N), -inf for a token that sees none, of rows (S, N, D)."""
    options = (chunk_size, causal, across_buckets, count_duplicates)
    out, log_normaliser = torch.empty_like(v), q.new_empty(q.shape[:2])
    for rows in _slices(order, chunk_size):
        real = None if num_real is None else num_real[rows]
        numerator, normaliser = torch.zeros_like(v[rows]), torch.zeros_like(q[rows][..., :1])
        largest = torch.full_like(normaliser, torch.finfo(q.dtype).min)
        for chunks in rounds(order[:, rows], buckets[:, rows], real, *options):
            logits = chunks.logits(chunks.queries(q[rows]), chunks.keys(k[rows]))
            top = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(q.dtype).min)
            weights = logits.sub_(top).exp_()
            parts = [weights @ chunks.keys(v[rows]), weights.sum(-1, keepdim=True), top]
            outputs, sums, top = (chunks.to_tokens(part, len(numerator)) for part in parts)
            before, largest = largest, torch.maximum(largest, top)
            old, new = (before - largest).exp_(), top.sub_(largest).exp_()
            numerator = numerator.mul_(old).addcmul_(outputs, new)
            normaliser = normaliser.mul_(old).addcmul_(sums, new)
        alone = normaliser == 0
        value = v[rows] if real is None else v[rows] * is_real(order[:, rows], real)
        out[rows] = torch.where(alone, value, numerator / normaliser.masked_fill(alone, 1.0))
        log_normaliser[rows] = (largest + normaliser.log()).squeeze(-1).masked_fill(alone.squeeze(-1), -torch.inf)
    return out, log_normaliser


@_attend.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    buckets: Tensor,
    num_real: Tensor | None,
    chunk_size: int,
    causal: bool,
    across_buckets: bool,
    count_duplicates: bool,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v), q.new_empty(q.shape[:2])


@torch.library.custom_op("reattend::lsh_attention_backward", mutates_args=())
def _attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_normaliser: Tensor,
    order: Tensor,
    buckets: Tensor,
    num_real: Tensor | None,
    chunk_size: int,
    causal: bool,
    across_buckets: bool,
    count_duplicates: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. With the normaliser of all rounds each round's weights are its part of one softmax."""
    options = (chunk_size, causal, across_buckets, count_duplicates)
    grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows in _slices(order, chunk_size):
        real = None if num_real is None else num_real[rows]
        alone = log_normaliser[rows, :, None] == -torch.inf
        shift = log_normaliser[rows, :, None].masked_fill(alone, 0.0)
        mean = (grad[rows] * out[rows]).sum(-1, keepdim=True)
        for chunks in rounds(order[:, rows], buckets[:, rows], real, *options):
            query, key, value = chunks.queries(q[rows]), chunks.keys(k[rows]), chunks.keys(v[rows])
            grad_out = chunks.queries(grad[rows])
            weights = chunks.logits(query, key).sub_(chunks.queries(shift)).exp_()
            grad_logits = (grad_out @ value.mT).sub_(chunks.queries(mean)).mul_(weights)
            size = len(shift)
            grads[0][rows] += chunks.to_tokens(grad_logits @ key, size)
            grads[1][rows] += chunks.sum_to_tokens(grad_logits.mT @ query, size)
            grads[2][rows] += chunks.sum_to_tokens(weights.mT @ grad_out, size)
        kept = alone if real is None else alone & is_real(order[:, rows], real)
        grads[2][rows] += grad[rows] * kept
    return grads


@_attend_backward.register_fake
def _(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_normaliser: Tensor,
    order: Tensor,
    buckets: Tensor,
    num_real: Tensor | None,
    chunk_size: int,
    causal: bool,
    across_buckets: bool,
    count_duplicates: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, order, buckets, num_real, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, order, buckets, num_real)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grads = _attend_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
    return *grads, *(None,) * 7


_attend.register_autograd(_differentiate, setup_context=_save)
