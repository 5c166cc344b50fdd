"""Depth-wise convolution of tokens on a sequence or a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.precision import without_autocast

NOISE = 0.02


def identity_kernels(*shape: int, dimensions: int) -> Tensor:
    """Kernels that leave tokens as they are, plus normal noise of standard deviation 0.02.

    Args:
        shape: of all kernels together; the last `dimensions` extents are those of one kernel.
        dimensions: 1 on a sequence, 2 on a grid.
    """
    kernels = NOISE * torch.randn(shape)
    centre = kernels
    for extent in shape[-dimensions:]:
        centre = centre.select(-dimensions, (extent - 1) // 2)
        dimensions -= 1
    centre += 1
    return kernels


def convolve(x: Tensor, kernels: Tensor, real: Tensor | None, prefix: int, grid: Sequence[int] | None) -> Tensor:
    """y_i(c) = sum_o w_c(o) x_{i+o}(c), zeros around, with kernels of any size: even ones pad right and bottom.

    Computed in float32 at least.

    Args:
        x: (B, N, C).
        kernels: (C, s) on a sequence, (C, s, s) on a grid; centred at (s - 1) // 2.
        real: (B, N), True at real tokens; others count as zeros.
        prefix: number of tokens in front that are no part of the sequence or grid, and stay as they are.
        grid: the two extents, of which N without prefix tokens may be another scale; None for a sequence.

    Returns:
        (B, N, C) in the type of `x`.

    Raises:
        ValueError: if N does not fit the grid at any scale.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    tokens, kernels = x[:, prefix:].to(wide), kernels.to(wide)
    if real is not None:
        tokens = tokens.masked_fill(~real[:, prefix:, None], 0.0)
    extents = (1, tokens.shape[1]) if grid is None else scaled_grid(grid, tokens.shape[1])
    kernels = kernels[:, None, None] if grid is None else kernels[:, None]
    if not tokens.shape[1]:
        return x
    image = tokens.mT.unflatten(2, extents)  # Its channels are last in memory, which is fastest.
    height, width = kernels.shape[2:]
    image = F.pad(image, ((width - 1) // 2, width // 2, (height - 1) // 2, height // 2))
    with without_autocast(x):
        image = F.conv2d(image, kernels, groups=x.shape[2])
    y = image.flatten(2).mT.to(x.dtype)
    return torch.cat([x[:, :prefix], y], dim=1) if prefix else y


def scaled_grid(grid: Sequence[int], length: int) -> tuple[int, ...]:
    """The extents of `grid`, scaled at its aspect ratio to `length` tokens.

    Raises:
        ValueError: if no scale has that many tokens.
    """
    divisor = math.gcd(*grid)
    ratio = [extent // divisor for extent in grid]
    scale = round((length / math.prod(ratio)) ** (1 / len(grid)))
    if math.prod(ratio) * scale ** len(grid) != length:
        words = " x ".join(map(str, grid))
        raise ValueError(f"{length} tokens are no {words} grid at any scale of its aspect ratio")
    return tuple(extent * scale for extent in ratio)
