"""Averages with biases in a window around each row and none elsewhere, relative to one largest key for each channel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.tile_average import DEEPEST, gather, pairwise_average, pairwise_gradients, spread


def window_average(tiles: Tensor, key: Tensor, value: Tensor, outside: bool) -> tuple[Tensor, Tensor]:
    """`local_average` that is not causal.

    Weights exp(key) are computed once; tiles are products with overlapping views of them, what is outside of the window
    are cumulative sums from both ends. Where a row's sum lies so far below exp(largest key + largest bias, or 0) that
    it would underflow, all is computed again in float64, and beyond float64 pair by pair.

    Args:
        tiles: (G, n, L, L + 2 r) from `tiles_of_band` or `tiles_of_factors`.
        key: (G, N, C), -inf where there is no key; one channel for each R channels of `value`.
        value: (G, N, C R).
        outside: whether keys outside of the window count.

    Returns:
        average (G, N, C R), zero where a row sees no key, and log_sum (G, N, C), then -inf.
    """
    average, log_sum = torch.ops.reattend.window_average(tiles, key, value, outside)
    return average, log_sum


def _weights(key: Tensor, value: Tensor, tiles: Tensor) -> tuple[Tensor, Tensor]:
    """exp(key - largest) * value and exp(key - largest) side by side (G, n L + 2 r, C R + C), zero around; largest."""
    largest = key.amax(1, keepdim=True)
    largest = torch.where(largest.isinf(), 0.0, largest)
    around = _around(tiles)
    channels = value.shape[2]
    padded = key.new_zeros(len(key), tiles.shape[1] * tiles.shape[2] + 2 * around, channels + key.shape[2])
    weights = padded[:, around : around + key.shape[1]]
    torch.sub(key, largest, out=weights[..., channels:])
    weights[..., channels:].exp_()
    torch.mul(spread(weights[..., channels:], value), value, out=weights[..., :channels])
    return padded, largest


def _positions(tiles: Tensor, outside: bool) -> tuple[Tensor, Tensor]:
    """exp(bias - largest) of each row, and the largest; keys outside of the window have a bias of 0."""
    largest = tiles.amax(3, keepdim=True)
    largest = largest.clamp(min=0.0) if outside else torch.where(largest.isinf(), 0.0, largest)
    return (tiles - largest).exp_(), largest


def _windows(padded: Tensor, tiles: Tensor) -> Tensor:
    """Overlapping views (G, n, S, C) of what each tile sees."""
    views: Tensor = padded.unfold(1, tiles.shape[3], tiles.shape[2]).mT
    return views


def _products(left: Tensor, right: Tensor) -> Tensor:
    """left @ right for each group, without copying overlapping views."""
    products = [torch.bmm(one, other) for one, other in zip(left, right, strict=True)]
    return products[0][None] if len(products) == 1 else torch.stack(products)


def _beyond(x: Tensor, window: int) -> Tensor:
    """Sums of x (G, N, C) over t' <= t - window and over t' >= t + window."""
    sums = torch.zeros_like(x)
    if window < x.shape[1]:
        sums[:, window:] = x[:, :-window].cumsum(1)
        sums[:, :-window] += x[:, window:].flip(1).cumsum(1).flip(1)
    return sums


def _forward(tiles: Tensor, key: Tensor, value: Tensor, outside: bool) -> tuple[Tensor, Tensor]:
    length, around = key.shape[1], _around(tiles)
    padded, largest_key = _weights(key, value, tiles)
    positions, largest_bias = _positions(tiles, outside)
    sums = _products(positions, _windows(padded, tiles)).flatten(1, 2)[:, :length]
    largest_bias = largest_bias.flatten(1, 2)[:, :length]
    if outside:
        beyond = _beyond(padded[:, around : around + length], around + 1)
        sums.addcmul_(beyond, (-largest_bias).exp())
    numerator, normaliser = sums.split([value.shape[2], key.shape[2]], 2)
    if _is_lost(normaliser, key):
        if key.dtype != torch.float64:
            average, log_sum = _forward(tiles.double(), key.double(), value.double(), outside)
            return average.to(value.dtype), log_sum.to(key.dtype)
        return pairwise_average(_dense(tiles, length, outside), key, value)
    log_sum = normaliser.log().add_(largest_key).add_(largest_bias)
    return numerator / spread(torch.where(normaliser > 0, normaliser, 1.0), value), log_sum


def _is_lost(normaliser: Tensor, key: Tensor) -> bool:
    smallest = math.exp(-DEEPEST[key.dtype])
    if bool(normaliser.amin() >= smallest):
        return False
    without_key = key.amax(1, keepdim=True) == -math.inf
    return not bool(((normaliser >= smallest) | without_key).all())


def _backward(
    tiles: Tensor,
    key: Tensor,
    value: Tensor,
    average: Tensor,
    log_sum: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
    outside: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    count, rows, columns = tiles.shape[1:]
    length, around, channels = key.shape[1], _around(tiles), value.shape[2]
    padded, largest_key = _weights(key, value, tiles)
    positions, largest_bias = _positions(tiles, outside)
    largest_bias = largest_bias.flatten(1, 2)[:, :length]
    exponent = torch.where(log_sum.isinf(), -math.inf, largest_key + largest_bias - log_sum)
    if bool(exponent.amax() > DEEPEST[key.dtype]):
        return _backward_again([tiles, key, value, average, log_sum, d_average, d_log_sum], outside)
    per_weight = exponent.exp_()
    d_sums = padded.new_zeros(len(key), count * rows, padded.shape[2])
    torch.mul(spread(per_weight, value), d_average, out=d_sums[:, :length, :channels])
    torch.mul(d_log_sum - gather(average * d_average, key), per_weight, out=d_sums[:, :length, channels:])
    blocks = d_sums.unflatten(1, (count, rows))
    d_tiles = _products(blocks, _windows(padded, tiles).mT).mul_(positions)
    d_padded = torch.zeros_like(padded)
    seen = _products(positions.mT, blocks)
    for start in range(0, columns, rows):
        part = seen[:, :, start : start + rows]
        d_padded[:, start:].unfold(1, part.shape[2], rows)[:, :count].mT.add_(part)
    d_weights = d_padded[:, around : around + length]
    if outside:
        d_weights = d_weights + _beyond(d_sums[:, :length] * (-largest_bias).exp(), around + 1)
    weight = padded[:, around : around + length, channels:]
    d_value = spread(weight, value) * d_weights[..., :channels]
    d_key = gather(value * d_weights[..., :channels], key).add_(d_weights[..., channels:]).mul_(weight)
    return d_tiles, d_key, d_value


def _backward_again(tensors: list[Tensor], outside: bool) -> tuple[Tensor, Tensor, Tensor]:
    tiles, key = tensors[:2]
    if key.dtype != torch.float64:
        tiles_, key_, value_, average, log_sum, d_average, d_log_sum = (x.double() for x in tensors)
        d_tiles, d_key, d_value = _backward(tiles_, key_, value_, average, log_sum, d_average, d_log_sum, outside)
        return d_tiles.to(tiles.dtype), d_key.to(key.dtype), d_value.to(key.dtype)
    d_bias, d_key, d_value = pairwise_gradients(_dense(tiles, key.shape[1], outside), *tensors[1:])
    count, rows, columns = tiles.shape[1:]
    around = _around(tiles)
    extra = count * rows - key.shape[1]
    d_bias = F.pad(d_bias, (around, around + extra, 0, extra))
    d_tiles = torch.stack(
        [d_bias[:, start : start + rows, start : start + columns] for start in range(0, count * rows, rows)], 1
    )
    return d_tiles.masked_fill(tiles.isinf(), 0.0), d_key, d_value


def _dense(tiles: Tensor, length: int, outside: bool) -> Tensor:
    """All biases (G, N, N)."""
    count, rows, columns = tiles.shape[1:]
    fill = 0.0 if outside else -math.inf
    bias = tiles.new_full((len(tiles), count * rows, count * rows + columns - rows), fill)
    for n in range(count):
        tile = tiles[:, n]
        bias[:, n * rows : (n + 1) * rows, n * rows : n * rows + columns] = torch.where(tile.isinf(), fill, tile)
    return bias[:, :length, _around(tiles) : _around(tiles) + length]


def _around(tiles: Tensor) -> int:
    """r, the keys that a tile sees on each side of its rows."""
    return (tiles.shape[3] - tiles.shape[2]) // 2


@torch.library.custom_op("reattend::window_average", mutates_args=())
def _window_average(tiles: Tensor, key: Tensor, value: Tensor, outside: bool) -> tuple[Tensor, Tensor]:
    return _forward(tiles, key, value, outside)


@_window_average.register_fake
def _(tiles: Tensor, key: Tensor, value: Tensor, outside: bool) -> tuple[Tensor, Tensor]:
    return value.new_empty(value.shape), key.new_empty(key.shape)


@torch.library.custom_op("reattend::window_average_backward", mutates_args=())
def _window_average_backward(
    tiles: Tensor,
    key: Tensor,
    value: Tensor,
    average: Tensor,
    log_sum: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
    outside: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(tiles, key, value, average, log_sum, d_average, d_log_sum, outside)


@_window_average_backward.register_fake
def _(
    tiles: Tensor,
    key: Tensor,
    value: Tensor,
    average: Tensor,
    log_sum: Tensor,
    d_average: Tensor,
    d_log_sum: Tensor,
    outside: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return tiles.new_empty(tiles.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.outside = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, d_average: Tensor, d_log_sum: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    d_tiles, d_key, d_value = torch.ops.reattend.window_average_backward(
        *ctx.saved_tensors, d_average, d_log_sum, ctx.outside
    )
    return d_tiles, d_key, d_value, None


_window_average.register_autograd(_differentiate, setup_context=_keep)
