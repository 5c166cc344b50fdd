"""Values summed with the probability that two vectors share a hash code, or with how often they did."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("reattend::expected_collisions", mutates_args=())
def expected_collisions(q: Tensor, k: Tensor, v: Tensor, bits: int, exact: bool) -> Tensor:
    """sum_j E_ij v_j with E_ij = (1 - arccos(q_i . k_j) / pi)^bits, the probability that all bits are equal.

    The gradient is exact, or has in place of dE/ds, which is infinite at s = 1, its lower bound (bits / 2) E
    (YOSO, 2111.09714, section 3). At s = 1 and -1 the exact gradient is taken to be zero. Time is quadratic; memory is
    linear, as weights exist for some queries at a time.

    Args:
        q: (B, H, N, D), of length one.
        k: (B, H, M, D), of length one.
        v: (B, H, M, D).
        bits: number of bits of a code.
        exact: whether the gradient is exact.

    Returns:
        (B, H, N, D).
    """
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=v.dtype, device=v.device)
    for rows in _rows(q, k):
        out[:, :, rows] = _power(_angle_share(q[:, :, rows] @ k.mT), bits) @ v
    return out


@torch.library.custom_op("reattend::expected_collisions_backward", mutates_args=())
def _expected_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bits: int, exact: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows in _rows(q, k):
        cosine, grad_out = q[:, :, rows] @ k.mT, grad[:, :, rows]
        share = _angle_share(cosine)
        weights = _power(share, bits)
        grad_v += weights.mT @ grad_out
        if exact:
            sine = (1 - cosine.square()).clamp_(min=0).sqrt_()
            slope = torch.where(sine == 0, 0.0, (bits / math.pi) * _power(share, bits - 1) / sine)
        else:
            slope = weights.mul_(bits / 2)
        grad_cosine = (grad_out @ v.mT).mul_(slope)
        grad_q[:, :, rows] = grad_cosine @ k
        grad_k += grad_cosine.mT @ q[:, :, rows]
    return grad_q, grad_k, grad_v


def _rows(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Queries that are worked on at a time."""
    at_once = 2**18 if q.device.type == "cpu" else 2**27
    step = max(1, at_once // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    for start in range(0, q.shape[2], step):
        yield slice(start, start + step)


def _angle_share(cosine: Tensor) -> Tensor:
    """1 - angle / pi; rounding may have put the cosine outside of -1 and 1."""
    return cosine.clamp(-1, 1).acos_().mul_(-1 / math.pi).add_(1)


def _power(x: Tensor, exponent: int) -> Tensor:
    """x^exponent by squaring, which is several times as fast as a power of any exponent."""
    result = torch.ones_like(x) if exponent % 2 == 0 else x
    while exponent > 1:
        exponent, x = exponent // 2, x * x
        if exponent % 2:
            result = result * x
    return result


@torch.library.custom_op("reattend::sampled_collisions", mutates_args=())
def sampled_collisions(q: Tensor, k: Tensor, v: Tensor, query_codes: Tensor, key_codes: Tensor, bits: int) -> Tensor:
    """sum_j C_ij v_j, where C_ij is the share of the hashes in which i and j have one code; time linear in length.

    Values are added up in a table by the keys' codes, from which each query reads its own. The gradient of q and k has
    (bits / 2) C in the place of dE/ds, as in `expected_collisions` (YOSO, 2111.09714, section 3); it is summed in
    tables of outer products.

    Args:
        q: (B, H, N, D), of length one.
        k: (B, H, M, D), of length one.
        v: (B, H, M, D).
        query_codes: (R, B, H, N), below 2^bits.
        key_codes: (R, B, H, M).
        bits: number of bits of a code.

    Returns:
        (B, H, N, D).
    """
    return _read(query_codes, key_codes, v, bits)


@torch.library.custom_op("reattend::sampled_collisions_backward", mutates_args=())
def _sampled_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, query_codes: Tensor, key_codes: Tensor, bits: int
) -> tuple[Tensor, Tensor, Tensor]:
    grad_q = _read_weighted(query_codes, key_codes, grad, v, k, bits)
    grad_k = _read_weighted(key_codes, query_codes, v, grad, q, bits)
    return grad_q.mul_(bits / 2), grad_k.mul_(bits / 2), _read(key_codes, query_codes, grad, bits)


def _read(reader_codes: Tensor, writer_codes: Tensor, values: Tensor, bits: int) -> Tensor:
    """Mean over the hashes of the sum (B, H, N, F) of the values (B, H, M, F) of the writers with the reader's code."""
    batch, heads, _, features = values.shape
    written = values.reshape(-1, features)
    out = torch.zeros(reader_codes[0].numel(), features, dtype=values.dtype, device=values.device)
    table = torch.empty(batch * heads << bits, features, dtype=values.dtype, device=values.device)
    first = (torch.arange(batch * heads, device=values.device) << bits)[:, None]
    for reader, writer in zip(reader_codes.flatten(1, 2), writer_codes.flatten(1, 2), strict=True):
        table.zero_().index_add_(0, (writer + first).flatten(), written)
        out += table.index_select(0, (reader + first).flatten())
    return out.div_(len(reader_codes)).view(*reader_codes.shape[1:], features)


def _read_weighted(
    reader_codes: Tensor, writer_codes: Tensor, reader: Tensor, writer: Tensor, values: Tensor, bits: int
) -> Tensor:
    """`_read` of values (B, H, M, F), each weighted by reader . writer, of (B, H, N, D) and (B, H, M, D)."""
    parts = []
    for part in values.split(4, -1):
        products = (writer.unsqueeze(-1) * part.unsqueeze(-2)).flatten(-2)
        read = _read(reader_codes, writer_codes, products, bits).unflatten(-1, (-1, part.shape[-1]))
        parts.append((reader.unsqueeze(-2) @ read).squeeze(-2))
    return torch.cat(parts, -1)


@expected_collisions.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bits: int, exact: bool) -> Tensor:
    return v.new_empty(*q.shape[:3], v.shape[3])


@sampled_collisions.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, query_codes: Tensor, key_codes: Tensor, bits: int) -> Tensor:
    return v.new_empty(*q.shape[:3], v.shape[3])


@_expected_backward.register_fake
@_sampled_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save_expected(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.bits, ctx.exact = inputs
    ctx.save_for_backward(*tensors)


def _save_sampled(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.bits = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_expected(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_expected_backward(grad, *ctx.saved_tensors, ctx.bits, ctx.exact), None, None


def _differentiate_sampled(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_sampled_backward(grad, *ctx.saved_tensors, ctx.bits), None, None, None


expected_collisions.register_autograd(_differentiate_expected, setup_context=_save_expected)
sampled_collisions.register_autograd(_differentiate_sampled, setup_context=_save_sampled)
