"""Biases in a window around each token, as tiles of consecutive rows and all keys that are near one of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

# Measured on a CPU, forward and backward: in a window of 256, blocks of an eighth to half of it differ by 6 %, and a
# whole one takes 16 to 25 % longer; in a window of 32, not causal, blocks of 16 to 64 differ by 9 %.
SMALLEST_BLOCK = 32


def block_length(window: int) -> int:
    """Rows of a tile, for biases at |t - s| < window."""
    return max(SMALLEST_BLOCK, window // 2)


def tiles_of_band(band: Tensor, causal: bool, fill: float) -> Tensor:
    """Biases (N, W) of the keys from t - s + 1 to t, or to t + s - 1, as tiles (n, L, L + W - 1).

    Row t of a tile has its biases from column t to t + W - 1; a causal tile's last L columns are its rows' own tokens.

    Args:
        band: (N, W), W = s or 2 s - 1.
        causal: whether row t sees keys up to t alone; what a tile has of later ones is -inf.
        fill: the bias of what else a tile has.
    """
    width = band.shape[1]
    block = block_length(width if causal else (width + 1) // 2)
    rows = F.pad(band, (0, 0, 0, -len(band) % block)).unflatten(0, (-1, block))
    return skew(rows, fill, -math.inf if causal else fill)


def tiles_of_factors(rows: Tensor, columns: Tensor, window: int, causal: bool, fill: float) -> Tensor:
    """As `tiles_of_band` for biases rows_t . columns_s, from rows and columns (N, r)."""
    block, before, after = block_length(window), window - 1, 0 if causal else window - 1
    extra = -len(rows) % block
    rows = F.pad(rows, (0, 0, 0, extra)).unflatten(0, (-1, block))
    columns = F.pad(columns, (0, 0, before, after + extra)).unfold(0, block + before + after, block)
    ahead = torch.arange(block + before + after, device=rows.device) - torch.arange(block, device=rows.device)[:, None]
    tiles = (rows @ columns).masked_fill((ahead < 0) | (ahead > before + after), fill)
    return tiles.masked_fill(ahead > before, -math.inf) if causal else tiles


def skew(band: Tensor, left: float, right: float) -> Tensor:
    """(..., L, W) as (..., L, L + W - 1): row t is moved to the right by t, between fills on both sides."""
    length, width = band.shape[-2:]
    # What follows row t in memory is on its right, and then on the left of row t + 1.
    following = torch.full((length, length), right, dtype=band.dtype, device=band.device)
    following.masked_fill_(torch.ones_like(following, dtype=torch.bool).tril().flip(1), left)
    padded = torch.cat([band, following.expand(*band.shape[:-1], length)], -1).flatten(-2)
    skewed: Tensor = padded[..., : length * (length + width - 1)].unflatten(-1, (length, length + width - 1))
    return skewed
