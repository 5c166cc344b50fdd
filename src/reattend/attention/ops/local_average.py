"""`weighted_average` with biases in a window around each row, and none outside of it, in linear time."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.causal_weighted_average import causal_weighted_average
from reattend.attention.ops.running_average import running_average
from reattend.attention.ops.weighted_average import merge, weighted_average
from reattend.attention.ops.window_average import window_average

SMALLEST_BLOCK = 32


def block_length(window: int) -> int:
    """Rows of a tile, for biases at |t - s| < window."""
    return max(SMALLEST_BLOCK, window // 2)


def local_average(
    tiles: Tensor, key: Tensor, value: Tensor, *, window: int, causal: bool, outside: bool = True
) -> tuple[Tensor, Tensor]:
    """`weighted_average` with bias_ts where |t - s| < window, and with 0 elsewhere, or without what is elsewhere.

    Only positive terms are added, so that nothing cancels where a bias is very negative. Not causal, it is
    `window_average`. Causal, the window is computed in tiles, what is before it as a running average, and all merged by
    their normalisers.

    Args:
        tiles: (G, n, L, S) from `tiles_of_band` or `tiles_of_factors`: -inf outside of the window.
        key: (G, N, C), float32 or float64, -inf where there is no key; one channel for each R channels of `value`.
        value: (G, N, C R).
        window: at least 1.
        causal: row t sees keys s <= t alone.
        outside: whether keys outside of the window count.

    Returns:
        average (G, N, C R), zero where a row sees no key, and log_sum (G, N, C), then -inf. Causal outputs do not
        change by a bit with later tokens.
    """
    if not causal:
        return window_average(tiles, key, value, outside)
    length = key.shape[1]
    parts = [(average[:, :length], log_sum[:, :length]) for average, log_sum in _causal_window(tiles, key, value)]
    if outside and window < length:
        parts.append(_later(running_average(key, value), window))
    return merge(parts) if len(parts) > 1 else parts[0]


def tiles_of_band(band: Tensor, causal: bool) -> Tensor:
    """Biases (G, N, W) of the keys from t - s + 1 to t, or to t + s - 1, as tiles (G, n, L, L + W - 1).

    Row t of a tile sees the columns from t to t + W - 1; a causal tile's last L columns are its rows' own tokens.
    """
    width = band.shape[2]
    block = block_length(width if causal else (width + 1) // 2)
    rows = F.pad(band, (0, 0, 0, -band.shape[1] % block)).unflatten(1, (-1, block))
    return skew(rows, -math.inf)


def tiles_of_factors(rows: Tensor, columns: Tensor, window: int, causal: bool) -> Tensor:
    """As `tiles_of_band` for biases rows_t . columns_s, from rows and columns (G, N, r)."""
    block, before, after = block_length(window), window - 1, 0 if causal else window - 1
    extra = -rows.shape[1] % block
    rows = F.pad(rows, (0, 0, 0, extra)).unflatten(1, (-1, block))
    columns = F.pad(columns, (0, 0, before, after + extra)).unfold(1, block + before + after, block)
    ahead = torch.arange(block + before + after, device=rows.device) - torch.arange(block, device=rows.device)[:, None]
    return (rows @ columns).masked_fill((ahead < 0) | (ahead > before + after), -math.inf)


def skew(band: Tensor, fill: float) -> Tensor:
    """(..., L, W) as (..., L, L + W - 1) with row t moved to the right by t, and `fill` beside it."""
    length, width = band.shape[-2:]
    padded = F.pad(band, (0, length), value=fill).flatten(-2)
    skewed: Tensor = padded[..., : length * (length + width - 1)].unflatten(-1, (length, length + width - 1))
    return skewed


def _causal_window(tiles: Tensor, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The keys of each row's own block, and those of the window that are before it: all past to all its rows."""
    count, rows, columns = tiles.shape[1:]
    before, extra = columns - rows, count * rows - key.shape[1]
    key, value = F.pad(key, (0, 0, before, extra), value=-math.inf), F.pad(value, (0, 0, before, extra))
    tiles = tiles.flatten(0, 1)
    own_key, own_value = (_blocks(x[:, before:], rows, rows) for x in (key, value))
    parts = [causal_weighted_average(tiles[:, :, before:], own_key, own_value)]
    if before:
        end = key.shape[1] - rows
        past_key, past_value = (_blocks(x[:, :end], before, rows) for x in (key, value))
        parts.append(weighted_average(tiles[:, :, :before], past_key, past_value))
    return [_unblocked(part, len(key)) for part in parts]


def _blocks(x: Tensor, size: int, step: int) -> Tensor:
    """Blocks (G n, size, C) of x (G, N, C)."""
    return x.unfold(1, size, step).flatten(0, 1).mT


def _unblocked(part: tuple[Tensor, Tensor], groups: int) -> tuple[Tensor, Tensor]:
    average, log_sum = (x.unflatten(0, (groups, -1)).flatten(1, 2) for x in part)
    return average, log_sum


def _later(part: tuple[Tensor, Tensor], steps: int) -> tuple[Tensor, Tensor]:
    """What was so `steps` tokens before."""
    average, log_sum = (x[:, :-steps] for x in part)
    return F.pad(average, (0, 0, steps, 0)), F.pad(log_sum, (0, 0, steps, 0), value=-math.inf)
