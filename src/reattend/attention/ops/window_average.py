"""`weighted_average` with biases in a window around each row, and one constant outside of it, in linear time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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
from reattend.attention.ops.window_sums import Window

# Entries of the weights of samples that are computed together. Measured on a CPU, 16 samples of 1,024 tokens and 256
# channels, forward and backward: 2^18 and 2^20 take 6 to 18 % longer, 2^21 14 to 24 %, 2^24 70 to 90 %.
CHUNK = 2**19


def window_average(
    tiles: Tensor, key: Tensor, value: Tensor, *, causal: bool, outside: bool = True
) -> tuple[Tensor, Tensor]:
    """`weighted_average` with bias_ts in a window, and with 0 elsewhere, or without what is elsewhere.

    Weights exp(key) are computed once for each channel, relative to its largest key; when causal to its first one,
    since the largest may be of the future. Tiles are products with overlapping views of them, and what is beyond a tile
    are sums of whole blocks, from both ends. Only positive terms are added, so that nothing cancels where a bias is
    very negative. A sum that would underflow, or has a weight that would overflow, is computed again in float64, and
    beyond float64 pair by pair, in quadratic time and memory. Gradients compute the weights again.

    Args:
        tiles: (n, L, S) from `tiles_of_band` or `tiles_of_factors`, whose fill is 0, or -inf without `outside`.
        key: (B, N, C), float32 or float64, -inf where there is no key; one channel for each R channels of `value`.
        value: (B, N, C R).
        causal: row t sees keys s <= t alone.
        outside: whether keys outside of the window count.

    Returns:
        average (B, N, C R), zero where a row sees no key, and log_sum (B, N, C), then -inf. Causal outputs do not
        change by a bit with later tokens.
    """
    average, log_sum = torch.ops.reattend.window_average(tiles, key, value, causal, outside)
    return average, log_sum


@dataclass(frozen=True)
class _Columns:
    """Samples and channels side by side, (T, B C R + B C): of values, and of keys."""

    all: Tensor
    of_values: Tensor
    of_keys: Tensor

    @staticmethod
    def of(x: Tensor, start: int, key: Tensor, value: Tensor) -> _Columns:
        """The rows of `x` from `start` on as views (B, N, C R) and (B, N, C)."""
        samples, length, channels = value.shape
        own = x[start : start + length]
        of_values, of_keys = own[:, : samples * channels], own[:, samples * channels :]
        of_values, of_keys = (part.unflatten(1, (samples, -1)).transpose(0, 1) for part in (of_values, of_keys))
        return _Columns(x, of_values, of_keys)

    @staticmethod
    def zeros(rows: int, start: int, key: Tensor, value: Tensor) -> _Columns:
        columns = len(key) * (key.shape[2] + value.shape[2])
        return _Columns.of(key.new_zeros(rows, columns), start, key, value)


def _deepest(window: Window, key: Tensor) -> float:
    """How far, as logarithms, sums may lie below exp(reference + largest bias), and weights above exp(reference)."""
    return DEEPEST[key.dtype] / 2 if window.causal else DEEPEST[key.dtype]


def _weights(window: Window, key: Tensor, value: Tensor) -> tuple[_Columns, Tensor, Tensor | None]:
    """exp(key - reference) times the value and alone, the reference (B, 1, C), and where a weight is cut off, if any.

    A weight that is cut off meets zeros in all rows before its own.
    """
    reference = key[:, :1] if window.causal else key.amax(1, keepdim=True)
    reference = torch.where(reference.isinf(), 0.0, reference)
    columns = _Columns.zeros(window.all_keys, window.before, key, value)
    weight = columns.of_keys
    torch.sub(key, reference, out=weight)
    deepest, cut = _deepest(window, key), None
    if window.causal and bool(weight.amax() > deepest):
        cut = weight > deepest
        weight.clamp_(max=deepest)
    weight.exp_()
    torch.mul(spread(weight, value), value, out=columns.of_values)
    return columns, reference, cut


def _forward(window: Window, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    length = key.shape[1]
    weights, reference, cut = _weights(window, key, value)
    sums = _Columns.of(window.sums(weights.all), 0, key, value)
    normaliser = sums.of_keys
    log_sum = normaliser.log().add_(reference).add_(window.largest[:length])
    average = sums.of_values / spread(torch.where(normaliser > 0, normaliser, 1.0), value)
    smallest = math.exp(-_deepest(window, key))
    if cut is None and bool(normaliser.amin() >= smallest):
        return average, log_sum
    lost = (normaliser < smallest) & window.sees((key > -math.inf).to(key.dtype))
    if cut is not None:
        lost |= cut.cummax(1).values
    if bool(lost.any()):
        exact_average, exact_log_sum = _exactly(window, key, value)
        average = torch.where(spread(lost, value), exact_average.to(value.dtype), average)
        log_sum = torch.where(lost, exact_log_sum.to(key.dtype), log_sum)
    return average, log_sum


def _exactly(window: Window, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    if key.dtype != torch.float64:
        return _forward(window.double(), key.double(), value.double())
    return pairwise_average(window.dense(key.shape[1]).expand(len(key), -1, -1), key, value)


def _backward(
    window: Window, key: Tensor, value: Tensor, average: Tensor, log_sum: Tensor, d_average: Tensor, d_log_sum: Tensor
) -> Gradients:
    """The gradient of the tiles is a sum over samples."""
    weights, reference, cut = _weights(window, key, value)
    per_weight = torch.where(log_sum.isinf(), -math.inf, reference + window.largest[: key.shape[1]] - log_sum)
    if cut is not None or bool(steep(per_weight, d_average, d_log_sum, _deepest(window, key)).any()):
        return _backward_exactly(window, key, value, average, log_sum, d_average, d_log_sum)
    per_weight.exp_()
    d_sums = _Columns.zeros(window.rows, 0, key, value)
    torch.mul(spread(per_weight, value), d_average, out=d_sums.of_values)
    torch.mul(d_log_sum - gather(average * d_average, key), per_weight, out=d_sums.of_keys)
    d_tiles, d_rows = window.gradients(weights.all, d_sums.all)
    d_weights = _Columns.of(d_rows, 0, key, value)
    d_key = gather(value * d_weights.of_values, key).add_(d_weights.of_keys).mul_(weights.of_keys)
    return d_tiles, d_key, spread(weights.of_keys, value) * d_weights.of_values


def _backward_exactly(window: Window, *tensors: Tensor) -> Gradients:
    key = tensors[0]
    if key.dtype != torch.float64:
        found = _backward(window.double(), *(x.double() for x in tensors))
        d_tiles, d_key, d_value = (x.to(key.dtype) for x in found)
        return d_tiles, d_key, d_value
    d_bias, d_key, d_value = pairwise_gradients(window.dense(key.shape[1]).expand(len(key), -1, -1), *tensors)
    return window.tiles_of(d_bias.sum(0)), d_key, d_value


def _chunks(key: Tensor, value: Tensor) -> list[slice]:
    """Samples that are computed together: all, or on a CPU as many as a cache holds the weights of."""
    entries = key[:1].numel() + value[:1].numel()
    samples = max(1, CHUNK // max(1, entries) if key.device.type == "cpu" else len(key))
    return [slice(start, start + samples) for start in range(0, len(key), samples)]


@torch.library.custom_op("reattend::window_average", mutates_args=())
def _window_average(tiles: Tensor, key: Tensor, value: Tensor, causal: bool, outside: bool) -> tuple[Tensor, Tensor]:
    window = Window(tiles, causal, outside)
    average, log_sum = torch.empty_like(value), torch.empty_like(key)
    for chunk in _chunks(key, value):
        average[chunk], log_sum[chunk] = _forward(window, key[chunk], value[chunk])
    return average, log_sum


@_window_average.register_fake
def _(tiles: Tensor, key: Tensor, value: Tensor, causal: bool, outside: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), torch.empty_like(key)


@torch.library.custom_op("reattend::window_average_backward", mutates_args=())
def _window_average_backward(
    tiles: Tensor,
    key: Tensor,
    value: Tensor,
    average: Tensor,
    log_sum: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
    causal: bool,
    outside: bool,
) -> Gradients:
    window = Window(tiles, causal, outside)
    d_tiles, d_key, d_value = torch.zeros_like(tiles), torch.empty_like(key), torch.empty_like(value)
    of_tokens = (key, value, average, log_sum, d_average, d_log_sum)
    for chunk in _chunks(key, value):
        part, d_key[chunk], d_value[chunk] = _backward(window, *(x[chunk] for x in of_tokens))
        d_tiles += part
    return d_tiles, d_key, d_value


@_window_average_backward.register_fake
def _(
    tiles: Tensor,
    key: Tensor,
    value: Tensor,
    average: Tensor,
    log_sum: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
    causal: bool,
    outside: bool,
) -> Gradients:
    return torch.empty_like(tiles), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.outside = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, d_average: Tensor, d_log_sum: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    d_tiles, d_key, d_value = torch.ops.reattend.window_average_backward(
        *ctx.saved_tensors, d_average, d_log_sum, ctx.causal, ctx.outside
    )
    return d_tiles, d_key, d_value, None, None


_window_average.register_autograd(_differentiate, setup_context=_keep)
