"""`weighted_average` with one matrix of biases for all samples."""

from __future__ import annotations

from torch import Tensor

from reattend.attention.ops.causal_weighted_average import causal_weighted_average
from reattend.attention.ops.weighted_average import weighted_average


def shared_bias_average(bias: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """One product of exp(bias) with the keys and values of all samples side by side.

    Args:
        bias: (N, N); when causal, what is above the diagonal plays no part.
        key: (B, N, C), float32 or float64, -inf where there is no key; one channel for each R channels of `value`.
        value: (B, N, C R).
        causal: row t sees keys s <= t alone.

    Returns:
        average (B, N, C R), zero where a row sees no key, and log_sum (B, N, C), then -inf.
    """
    function = causal_weighted_average if causal else weighted_average
    average, log_sum = function(bias[None], _samples_beside(key), _samples_beside(value))
    return _samples_first(average, len(key)), _samples_first(log_sum, len(key))


def _samples_beside(x: Tensor) -> Tensor:
    """(B, N, C) as (1, N, B C)."""
    return x.transpose(0, 1).flatten(1)[None]


def _samples_first(x: Tensor, batch_size: int) -> Tensor:
    """(1, N, B C) as (B, N, C)."""
    beside: Tensor = x[0].unflatten(1, (batch_size, -1))
    return beside.transpose(0, 1)
