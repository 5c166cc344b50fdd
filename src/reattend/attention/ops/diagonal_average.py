"""Sums of values with weights exp(bias + key) over tiles on the diagonal, where a row sees the keys up to its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.ops.tile_average import (
    DEEPEST,
    Gradients,
    gather,
    pairwise_average,
    pairwise_gradients,
    spread,
    steep,
)


def diagonal_average(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """`tile_average` over the keys s <= t alone, no row of which moves by a bit with later keys or values.

    A channel's weights are relative to the first key of the tile, which all rows see, and cut off where they would
    overflow: in rows before it such a weight meets a zero. A row that sees one, or whose sum underflows, is computed
    again pair by pair.

    Args:
        bias: (n, T, T), -inf above the diagonal.
        key: (n, T, C), -inf where there is no key.
        value: (n, T, C R).
    """
    reference, largest_bias = _finite(key[:, :1]), _finite(bias.amax(2, keepdim=True))
    exponent = key - reference
    deepest = DEEPEST[key.dtype] / 2  # For weights above one and for sums below.
    cut = bool(exponent.amax() > deepest)
    high = (exponent > deepest).cummax(1).values if cut else None
    weight = exponent.clamp_(max=deepest).exp_()
    sums = (bias - largest_bias).exp_() @ torch.cat([spread(weight, value) * value, weight], -1)
    numerator, normaliser = sums.split([value.shape[-1], key.shape[-1]], -1)
    average = numerator / spread(torch.where(normaliser > 0, normaliser, 1.0), value)
    log_sum = normaliser.log().add_(reference).add_(largest_bias)
    smallest = math.exp(-deepest)
    if high is None and bool(normaliser.amin() >= smallest):
        return average, log_sum
    seen = (bias > -math.inf).to(key.dtype) @ (key > -math.inf).to(key.dtype) > 0
    lost = (normaliser < smallest) & seen
    rows = (lost if high is None else lost | high).any(2)
    for n in rows.any(1).nonzero().flatten().tolist():
        exact = pairwise_average(bias[n, None], key[n, None], value[n, None])
        for whole, part in zip((average, log_sum), exact, strict=True):
            whole[n] = torch.where(rows[n, :, None], part[0], whole[n])
    return average, log_sum


def diagonal_gradients(
    bias: Tensor, key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> Gradients:
    """Gradients of bias, key and value; average and log_sum may be over more keys than those of the tile."""
    reference, largest_bias = _finite(key[:, :1]), _finite(bias.amax(2, keepdim=True))
    deepest = DEEPEST[key.dtype] / 2  # For weights above one and for sums below.
    exponent = key - reference
    per_weight = torch.where(log_sum.isinf(), -math.inf, reference + largest_bias - log_sum)
    high = exponent.flatten(1).amax(1) > deepest
    lost: list[int] = (high | steep(per_weight, d_average, d_log_sum, deepest)).nonzero().flatten().tolist()
    if lost:
        exponent[lost] = -math.inf
        per_weight[lost] = -math.inf
    weight, per_weight = exponent.exp_(), per_weight.exp_()
    position = (bias - largest_bias).exp_()
    d_normaliser = (d_log_sum - gather(average * d_average, key)) * per_weight
    d_sums = torch.cat([spread(per_weight, value) * d_average, d_normaliser], -1)
    d_weighted, d_weight = (position.mT @ d_sums).split([value.shape[-1], key.shape[-1]], -1)
    weighted = torch.cat([spread(weight, value) * value, weight], -1)
    d_bias = (d_sums @ weighted.mT).mul_(position)
    d_key = (gather(value * d_weighted, key) + d_weight).mul_(weight)
    d_value = spread(weight, value) * d_weighted
    for n in lost:
        tensors = (x[n, None] for x in (bias, key, value, average, log_sum, d_average, d_log_sum))
        for whole, part in zip((d_bias, d_key, d_value), pairwise_gradients(*tensors), strict=True):
            whole[n] = part[0]
    return d_bias, d_key, d_value


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isinf(), 0.0, x)
