"""Sums of values with weights exp(bias + key) over tiles of rows and keys, and their gradients, without autograd."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

# How far a row's sum may lie below exp(largest key + largest bias), as a logarithm. The smallest normal float32 is
# exp(-87): what a larger one loses is below S exp(-27) of the sum of S keys.
DEEPEST = {torch.float32: 60.0, torch.float64: 640.0}
PAIRWISE_ELEMENTS = 2**22

Gradients = tuple[Tensor, Tensor, Tensor]


def tile_average(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """`weighted_average` of each of n tiles.

    Two products share exp(bias); the largest key of a channel and the largest bias of a row cancel. A tile in which
    they lie so far apart that a sum would underflow is computed again in float64, and beyond float64 pair by pair with
    the exact maximum, each on its own: no tile's result moves by a bit when another one changes.
    """
    largest_key, largest_bias = _shift(key, 1), _shift(bias, 2)
    weight = (key - largest_key).exp_()
    sums = (bias - largest_bias).exp_() @ torch.cat([spread(weight, value) * value, weight], -1)
    numerator, normaliser = sums.split([value.shape[-1], key.shape[-1]], -1)
    average = numerator / spread(torch.where(normaliser > 0, normaliser, 1.0), value)
    log_sum = normaliser.log().add_(largest_key).add_(largest_bias)
    for n in _lost(bias, key, normaliser):
        found = _again(bias[n], key[n], value[n])
        average[n], log_sum[n] = found
    return average, log_sum


def tile_gradients(
    bias: Tensor, key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> Gradients:
    """Gradients of bias, key and value; average and log_sum may be over more keys than those of the tile."""
    largest_key, largest_bias = key.amax(1, keepdim=True), bias.amax(2, keepdim=True)
    exponent = torch.where(log_sum.isinf(), -math.inf, largest_key + largest_bias - log_sum)
    lost = _tiles(steep(exponent, d_average, d_log_sum, DEEPEST[key.dtype])) if exponent.numel() else []
    for n in lost:
        exponent[n] = -math.inf
    per_weight = exponent.exp_()
    position = (bias - _finite(largest_bias)).exp_()
    weight = (key - _finite(largest_key)).exp_()
    d_normaliser = (d_log_sum - gather(average * d_average, key)) * per_weight
    d_sums = torch.cat([spread(per_weight, value) * d_average, d_normaliser], -1)
    d_weighted, d_weight = (position.mT @ d_sums).split([value.shape[-1], key.shape[-1]], -1)
    weighted = torch.cat([spread(weight, value) * value, weight], -1)
    d_bias = (d_sums @ weighted.mT).mul_(position)
    d_key = (gather(value * d_weighted, key) + d_weight).mul_(weight)
    d_value = spread(weight, value) * d_weighted
    for n in lost:
        tensors = (bias[n], key[n], value[n], average[n], log_sum[n], d_average[n], d_log_sum[n])
        d_bias[n], d_key[n], d_value[n] = _gradients_again(*tensors)
    return d_bias, d_key, d_value


def pairwise_average(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """`tile_average` pair by pair: each row and channel has its own maximum."""
    averages, log_sums = [], []
    for rows in _row_chunks(bias, key):
        logits = bias[:, rows, :, None] + key[:, None]
        log_sum = logits.logsumexp(2)
        share = (logits - _finite(log_sum)[:, :, None]).exp_()
        averages.append((spread(share, value) * value[:, None]).sum(2))
        log_sums.append(log_sum)
    return torch.cat(averages, 1), torch.cat(log_sums, 1)


def pairwise_gradients(
    bias: Tensor, key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> Gradients:
    """`tile_gradients` pair by pair."""
    d_bias, d_key, d_value = torch.empty_like(bias), torch.zeros_like(key), torch.zeros_like(value)
    log_sum = _finite(log_sum)
    for rows in _row_chunks(bias, key):
        share = (bias[:, rows, :, None] + key[:, None] - log_sum[:, rows, None]).exp_()
        d_output = d_average[:, rows, None]
        d_value += (spread(share, value) * d_output).sum(1)
        centred = gather((value[:, None] - average[:, rows, None]) * d_output, key) + d_log_sum[:, rows, None]
        d_logits = centred.mul_(share)
        d_key += d_logits.sum(1)
        d_bias[:, rows] = d_logits.sum(-1)
    return d_bias, d_key, d_value


def steep(exponent: Tensor, d_average: Tensor, d_log_sum: Tensor, deepest: float) -> Tensor:
    """For which of n tiles exp(exponent), times gradients, is more than products can hold; (n,).

    Args:
        exponent: (n, ..., C).
        d_average: (n, ..., C R).
        d_log_sum: (n, ..., C).
        deepest: the largest exponent that gradients of 1 may meet.
    """
    largest = exponent.flatten(1).amax(1)
    # The largest gradients, those of sums without a normaliser, are about exp(30): the other half at most.
    if bool(largest.amax() <= deepest / 2):
        return torch.zeros_like(largest, dtype=torch.bool)
    size = torch.maximum(*(x.abs().flatten(1).amax(1) for x in (d_average, d_log_sum)))
    return largest > deepest - size.clamp(min=1.0).log()


def spread(x: Tensor, value: Tensor) -> Tensor:
    """(..., C) repeated for the R channels of value (..., C R) that share it."""
    repeats = value.shape[-1] // x.shape[-1]
    return x if repeats == 1 else x.repeat_interleave(repeats, -1)


def gather(x: Tensor, like: Tensor) -> Tensor:
    """(..., C R) summed over each R channels to the (..., C) of `like`."""
    repeats = x.shape[-1] // like.shape[-1]
    return x if repeats == 1 else x.unflatten(-1, (-1, repeats)).sum(-1)


def _again(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """One tile that the two products lost, exactly."""
    tensors = (bias[None], key[None], value[None])
    if key.dtype == torch.float64:
        average, log_sum = pairwise_average(*tensors)
    else:
        average, log_sum = tile_average(*(x.double() for x in tensors))
    return average[0], log_sum[0]


def _gradients_again(*tensors: Tensor) -> Gradients:
    if tensors[0].dtype == torch.float64:
        d_bias, d_key, d_value = pairwise_gradients(*(x[None] for x in tensors))
    else:
        d_bias, d_key, d_value = tile_gradients(*(x[None].double() for x in tensors))
    return d_bias[0], d_key[0], d_value[0]


def _lost(bias: Tensor, key: Tensor, normaliser: Tensor) -> list[int]:
    """Tiles with a sum that underflowed; a sum over no key is a zero that is right."""
    smallest = math.exp(-DEEPEST[key.dtype])
    if not normaliser.numel() or bool(normaliser.amin() >= smallest):
        return []
    suspect = _range(bias) + _range(key) > DEEPEST[key.dtype]
    return [n for n in _tiles(suspect) if _is_lost(bias[n], key[n], normaliser[n] < smallest)]


def _is_lost(bias: Tensor, key: Tensor, small: Tensor) -> bool:
    seen = (bias > -math.inf).to(key.dtype) @ (key > -math.inf).to(key.dtype)
    return bool((small & (seen > 0)).any())


def _tiles(chosen: Tensor) -> list[int]:
    tiles: list[int] = chosen.nonzero().flatten().tolist()
    return tiles


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isinf(), 0.0, x)


def _shift(x: Tensor, dim: int) -> Tensor:
    """The largest entry along `dim`; zero where there is none."""
    return _finite(x.amax(dim, keepdim=True))


def _range(x: Tensor) -> Tensor:
    """Largest difference (n,) of two finite entries of each tile."""
    smallest = torch.where(x.isinf(), math.inf, x).flatten(1).amin(1)
    return torch.where(smallest.isinf(), 0.0, x.flatten(1).amax(1) - smallest)


def _row_chunks(bias: Tensor, key: Tensor) -> Iterator[slice]:
    rows = max(1, PAIRWISE_ELEMENTS // max(1, bias.shape[0] * key[0].numel()))
    return (slice(start, start + rows) for start in range(0, bias.shape[1], rows))
