"""Floating-point operations of operators that torch's counter does not know.

A backward pass counts as twice its forward pass, as that of two matrix products is, without what is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import reattend.attention  # noqa: F401  registers the operators
from reattend.attention.ops import (  # noqa: F401
    causal_weighted_average,
    collisions,
    convolved_average,
    gaussian,
    grouped_average,
    lsh_attention,
    top_k_attention,
    weighted_average,
    window_average,
)

Shape = torch.Size
Formula = Callable[..., int]


def _fused(q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    """Logits and weighted values of all queries and keys."""
    return 2 * q.numel() * k[-2] + 2 * q[:-1].numel() * v[-2] * v[-1]


def _top_k(q: Shape, k: Shape, v: Shape, key_mask: Shape | None, count: int, *_: Any, **__: Any) -> int:
    """All logits, and the weighted values of the `count` largest of a query."""
    return 2 * q.numel() * k[-2] + 2 * q[:-1].numel() * min(count, k[-2]) * v[-1]


def _lsh(
    q: Shape, k: Shape, v: Shape, order: Shape, buckets: Shape, num_real: Shape | None, chunk: int, *_: Any, **__: Any
) -> int:
    """Logits and weighted values of a token's own chunk and the one before it, in each round."""
    keys = min(2 * chunk, q[-2])
    return 2 * order[0] * q[:-1].numel() * keys * (q[-1] + v[-1])


def _sampled(q: Shape, k: Shape, v: Shape, query_codes: Shape, key_codes: Shape, *_: Any, **__: Any) -> int:
    """One addition for every value that is written to, and read from, the table of a hash."""
    return (query_codes.numel() + key_codes.numel()) * v[-1]


def _sampled_backward(
    grad: Shape, q: Shape, k: Shape, v: Shape, query_codes: Shape, key_codes: Shape, *_: Any, **__: Any
) -> int:
    """Tables of outer products for queries and for keys, and one of gradients for the values."""
    tokens = query_codes.numel() + key_codes.numel()
    return tokens * v[-1] * (2 * q[-1] + 1)


def _gaussian(x: Shape, y: Shape, *_: Any, **__: Any) -> int:
    """Inner products of all pairs."""
    return 2 * x.numel() * y[-2]


def _average(bias: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Products of exp(bias) (..., T, S) with keys (..., S, C) and with values."""
    return 2 * bias.numel() * (key[-1] + value[-1])


def _window_average(tiles: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Products of exp(bias) (n, L, S) with keys (B, N, C) and with values, each tile counted whole."""
    return 2 * tiles.numel() * key[0] * (key[-1] + value[-1])


def _causal_average(bias: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """As `_average`, of the past alone."""
    return _average(bias, key, value) // 2


def _grouped_average(table: Shape, index: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Products of exp(filter) (G, T, S) with keys (G, S, B) and with values (G, S, R, B)."""
    return 2 * index.numel() * key[0] * key[-1] * (1 + value[-2])


def _convolved_average(filters: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Convolutions of keys (B, N, h) and of values (B, N, h R) with filters (h, s_1, ..., s_d)."""
    return 2 * filters[1:].numel() * (key.numel() + value.numel())


def _doubled(forward: Formula) -> Formula:
    """The backward pass, whose arguments begin with those of `forward`."""
    return lambda *arguments, **options: 2 * forward(*arguments, **options)


def _twice(forward: Formula, skipped: int = 0) -> Formula:
    """The backward pass, whose arguments are the gradient, those of `forward` with `skipped` saved results after v."""

    def backward(grad: Shape, q: Shape, k: Shape, v: Shape, *rest: Any, **options: Any) -> int:
        return 2 * forward(q, k, v, *rest[skipped:], **options)

    return backward


def _top_k_backward(
    grad: Shape,
    q: Shape,
    k: Shape,
    v: Shape,
    key_mask: Shape | None,
    threshold: Shape,
    normaliser: Shape,
    count: int,
    *_: Any,
    **__: Any,
) -> int:
    return 2 * _top_k(q, k, v, key_mask, count)


def formulas() -> Mapping[Any, Formula]:
    """Operations by operator, as `FlopCounterMode` takes them: from the shapes of an operator's arguments."""
    ours, aten = torch.ops.reattend, torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu: _fused,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _twice(_fused),
        ours.top_k_attention: _top_k,
        ours.top_k_attention_backward: _top_k_backward,
        ours.lsh_attention: _lsh,
        ours.lsh_attention_backward: _twice(_lsh, skipped=2),
        ours.expected_collisions: _fused,
        ours.expected_collisions_backward: _twice(_fused),
        ours.sampled_collisions: _sampled,
        ours.sampled_collisions_backward: _sampled_backward,
        ours.gaussian_kernel: _gaussian,
        ours.weighted_average: _average,
        ours.weighted_average_backward: _doubled(_average),
        ours.window_average: _window_average,
        ours.window_average_backward: _doubled(_window_average),
        ours.causal_weighted_average: _causal_average,
        ours.causal_weighted_average_backward: _doubled(_causal_average),
        ours.grouped_average: _grouped_average,
        ours.grouped_average_backward: _doubled(_grouped_average),
        ours.convolved_average: _convolved_average,
        ours.convolved_average_backward: _doubled(_convolved_average),
    }
