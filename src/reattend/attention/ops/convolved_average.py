"""Averages of values on a grid with weights exp(key + bias), by convolution of the weights and the weighted values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from reattend.attention.ops.grid_sums import filter_gradient, filter_sums, outside_sums
from reattend.attention.ops.relative_bias import relative_table
from reattend.attention.ops.relative_pairs import Gradients, pairwise, pairwise_gradients
from reattend.attention.ops.tile_average import DEEPEST, steep

# Values and weights that are gone through together, so that they stay in a core's cache: 2 MiB of float32. Measured on
# one thread, forward and backward, 64 samples of 14 x 14 places, 192 channels, 11 x 11 taps, 32 and 192 filters, in ms:
# all at once 214 and 348, 16 samples 117 and 208, 8 samples 110 and 198, 4 samples 109 and 208, one 194 and 302.
CHUNK = 2**19


def convolved_average(
    filters: Tensor, key: Tensor, value: Tensor, grid: Sequence[int], outside: float
) -> tuple[Tensor, Tensor]:
    """Averages of values and the logarithm of their normaliser, every place seeing all others.

        average_t = sum_t' exp(key_t' + w(t' - t)) value_t' / sum_t' exp(key_t' + w(t' - t))

    exp(w) is convolved with exp(key) and exp(key) value, relative to the largest key and the largest bias of a filter,
    and what it does not reach is summed on its own (AFT, Eqn 6, without its difference). Memory is linear in N, and so
    is time. A sample in which keys and biases lie so far apart that a sum underflows, by more than exp(-60) in float32
    and exp(-640) in float64, is computed again in float64, and beyond that pair by pair in quadratic time. The choice
    is made for each sample, so that none moves by a bit when another one changes.

    Args:
        filters: w (h, s_1, ..., s_d), d up to 3, each s odd, centred.
        key: (B, N, h), -inf where there is none.
        value: (B, N, h R).
        grid: the d extents, of product N.
        outside: the bias beyond the filter.

    Returns:
        average (B, N, h R), zero for a place that sees no key, and log_sum (B, N, h), then -inf.
    """
    average, log_sum = torch.ops.reattend.convolved_average(filters, key, value, list(grid), outside)
    return average, log_sum


def _forward(filters: Tensor, key: Tensor, value: Tensor, grid: Sequence[int], outside: float) -> tuple[Tensor, Tensor]:
    average, log_sum = torch.empty_like(value), torch.empty_like(key)
    for some in _chunks(key, value):
        average[some], log_sum[some] = _forward_of_some(filters, key[some], value[some], grid, outside)
    return average, log_sum


def _forward_of_some(
    filters: Tensor, key: Tensor, value: Tensor, grid: Sequence[int], outside: float
) -> tuple[Tensor, Tensor]:
    weights, beyond, bias_shift = _positions(filters, outside)
    columns, key_shift = _columns(key, value)
    repeats = value.shape[2] // key.shape[2]
    sums = _sums(columns, _repeated(weights, repeats), _repeated(beyond, repeats), grid)
    numerator, normaliser = sums.split([value.shape[2], key.shape[2]], 2)
    average = numerator / _spread(torch.where(normaliser > 0, normaliser, 1.0), repeats)
    log_sum = normaliser.log().add_(bias_shift + key_shift)
    lost = _lost(filters, key, normaliser, outside)
    if len(lost):
        again = pairwise if key.dtype == torch.float64 else _forward
        found = again(filters.double(), key[lost].double(), value[lost].double(), grid, outside)
        average[lost], log_sum[lost] = (x.to(key.dtype) for x in found)
    return average, log_sum


def _backward(filters: Tensor, tensors: Sequence[Tensor], grid: Sequence[int], outside: float) -> Gradients:
    """Gradients from key, value, average, log_sum and the gradients of the last two."""
    key, value = tensors[:2]
    d_filters, d_key, d_value = torch.zeros_like(filters), torch.empty_like(key), torch.empty_like(value)
    for some in _chunks(key, value):
        found = _backward_of_some(filters, [x[some] for x in tensors], grid, outside)
        of_filters, d_key[some], d_value[some] = found
        d_filters += of_filters
    return d_filters, d_key, d_value


def _backward_of_some(filters: Tensor, tensors: Sequence[Tensor], grid: Sequence[int], outside: float) -> Gradients:
    key, value, average, log_sum, d_average, d_log_sum = tensors
    weights, beyond, bias_shift = _positions(filters, outside)
    columns, key_shift = _columns(key, value)
    channels, repeats = value.shape[2], value.shape[2] // key.shape[2]
    scale = (key_shift + bias_shift - log_sum).masked_fill_(log_sum.isinf(), -math.inf)
    lost = steep(scale, d_average, d_log_sum, DEEPEST[key.dtype]).nonzero()[:, 0]
    scale[lost] = -math.inf
    scale.exp_()
    d_sums = torch.empty_like(columns)
    torch.mul(_spread(scale, repeats), d_average, out=d_sums[..., :channels])
    torch.mul(d_log_sum - _gathered(average * d_average, repeats), scale, out=d_sums[..., channels:])
    flipped = _repeated(weights.flip(list(range(1, weights.dim()))), repeats)
    d_columns = _sums(d_sums, flipped, _repeated(beyond, repeats), grid)
    d_weights = filter_gradient(_lifted(d_sums, grid), _lifted(columns, grid), _three(filters.shape[1:]))
    of_values, of_keys = d_weights.view(-1, *filters.shape[1:]).split([channels, len(filters)])
    d_filters = of_values.unflatten(0, (len(filters), repeats)).sum(1).add_(of_keys).mul_(weights)
    d_value = d_columns[..., :channels] * _spread(columns[..., channels:], repeats)
    # columns are weight * value beside weight.
    d_columns.mul_(columns)
    d_key = _gathered(d_columns[..., :channels], repeats) + d_columns[..., channels:]
    if len(lost):
        again = pairwise_gradients if key.dtype == torch.float64 else _backward
        found = again(filters.double(), [x[lost].double() for x in tensors], grid, outside)
        d_filters += found[0].to(key.dtype)
        d_key[lost], d_value[lost] = (x.to(key.dtype) for x in found[1:])
    return d_filters, d_key, d_value


def _chunks(key: Tensor, value: Tensor) -> Iterator[slice]:
    """Some samples at a time."""
    samples = max(1, CHUNK // max(1, key[0].numel() + value[0].numel())) if len(key) else 1
    return (slice(start, start + samples) for start in range(0, len(key), samples))


def _positions(filters: Tensor, outside: float) -> tuple[Tensor, Tensor, Tensor]:
    """exp(filters - shift), exp(outside - shift) and the shift (h), the largest bias of each filter."""
    shift = filters.flatten(1).amax(1).clamp(min=outside)
    shift = torch.where(shift.isinf(), 0.0, shift)
    weights = (filters - shift.view(-1, *[1] * (filters.dim() - 1))).exp_()
    return weights, (outside - shift).exp_(), shift


def _columns(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted values and the weight side by side, (B, N, h R + h), and the largest key (B, 1, h)."""
    channels = value.shape[2]
    shift = key.amax(1, keepdim=True)
    shift = torch.where(shift.isinf(), 0.0, shift)
    columns = value.new_empty(*value.shape[:2], channels + key.shape[2])
    weight = columns[..., channels:]
    torch.sub(key, shift, out=weight)
    weight.exp_()
    torch.mul(_spread(weight, channels // key.shape[2]), value, out=columns[..., :channels])
    return columns, shift


def _sums(columns: Tensor, weights: Tensor, beyond: Tensor, grid: Sequence[int]) -> Tensor:
    """Sums (B, N, C) of columns (B, N, C) with weights (C, s_1, ..., s_d) around a place and beyond (C) elsewhere."""
    kernel = _three(weights.shape[1:])
    x = _lifted(columns, grid)
    sums = filter_sums(x, weights.view(-1, *kernel))
    if bool(beyond.any()):
        sums.addcmul_(outside_sums(x, kernel), beyond)
    return sums.view(columns.shape)


def _lifted(columns: Tensor, grid: Sequence[int]) -> Tensor:
    return columns.view(len(columns), *_three(grid), columns.shape[2])


def _three(extents: Sequence[int]) -> list[int]:
    return [1] * (3 - len(extents)) + list(extents)


def _repeated(x: Tensor, repeats: int) -> Tensor:
    """(h, ...) for the columns h R + h."""
    return torch.cat([x.repeat_interleave(repeats, 0), x])


def _spread(x: Tensor, repeats: int) -> Tensor:
    return x if repeats == 1 else x.repeat_interleave(repeats, -1)


def _gathered(x: Tensor, repeats: int) -> Tensor:
    gathered: Tensor = x if repeats == 1 else x.unflatten(-1, (-1, repeats)).sum(-1)
    return gathered


def _lost(filters: Tensor, key: Tensor, normaliser: Tensor, outside: float) -> Tensor:
    """Samples with a sum that underflowed; a sum over no key is a zero that is right."""
    small = (normaliser < math.exp(-DEEPEST[key.dtype])).any(1)
    if bool(small.any()):
        biases = relative_table(filters, outside)[:, :-1]
        small &= _range(biases) + _range(key.mT) > DEEPEST[key.dtype]
    return small.any(1).nonzero()[:, 0]


def _range(x: Tensor) -> Tensor:
    """Largest difference of two finite entries of a row, (..., S) to (...)."""
    largest = x.amax(-1, keepdim=True)
    largest = torch.where(largest.isinf(), 0.0, largest)
    return (largest - torch.where(x.isinf(), largest, x)).amax(-1)


@torch.library.custom_op("reattend::convolved_average", mutates_args=())
def _convolved_average(
    filters: Tensor, key: Tensor, value: Tensor, grid: Sequence[int], outside: float
) -> tuple[Tensor, Tensor]:
    return _forward(filters, key, value, grid, outside)


@_convolved_average.register_fake
def _(filters: Tensor, key: Tensor, value: Tensor, grid: Sequence[int], outside: float) -> tuple[Tensor, Tensor]:
    return value.new_empty(value.shape), key.new_empty(key.shape)


@torch.library.custom_op("reattend::convolved_average_backward", mutates_args=())
def _convolved_average_backward(
    filters: Tensor,
    key: Tensor,
    value: Tensor,
    average: Tensor,
    log_sum: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
    grid: Sequence[int],
    outside: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(filters, [key, value, average, log_sum, d_average, d_log_sum], grid, outside)


@_convolved_average_backward.register_fake
def _(
    filters: Tensor,
    key: Tensor,
    value: Tensor,
    average: Tensor,
    log_sum: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
    grid: Sequence[int],
    outside: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return filters.new_empty(filters.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.grid, ctx.outside = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, d_average: Tensor, d_log_sum: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    d_filters, d_key, d_value = torch.ops.reattend.convolved_average_backward(
        *ctx.saved_tensors, d_average, d_log_sum, ctx.grid, ctx.outside
    )
    return d_filters, d_key, d_value, None, None


_convolved_average.register_autograd(_differentiate, setup_context=_keep)
