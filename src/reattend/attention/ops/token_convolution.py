"""Convolution over the tokens with one filter for all features of a head, as matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

BLOCK = 64


def convolve_tokens(x: Tensor, filters: Tensor) -> Tensor:
    """y_i = sum_t w_t x_(i + t - K // 2) for each head, zero outside: x (B, H, N, D) with w (H, K), K odd.

    Blocks of tokens are products of a banded matrix with what they see, without a copy of it: several times as fast as
    a depth-wise convolution on a CPU, and of matrix units on a GPU. Differentiable once.
    """
    y: Tensor = _TokenConvolution.apply(x, filters)
    return y


def convolution_flops(length: int, dim: int, size: int) -> int:
    """Floating-point operations of one head's `convolve_tokens`, 2 per multiply-add, those with zeros among them."""
    block = min(BLOCK, length)
    return 2 * -(-length // block) * block * (block + size - 1) * dim


class _TokenConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, filters: Tensor) -> Tensor:
        ctx.save_for_backward(x, filters)
        return _convolve(x, filters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, filters = ctx.saved_tensors
        for_x = _convolve(gradient, filters.flip(1)) if ctx.needs_input_grad[0] else None
        for_filters = _correlate(gradient, x, filters.shape[1]) if ctx.needs_input_grad[1] else None
        return for_x, for_filters


def _convolve(x: Tensor, filters: Tensor) -> Tensor:
    batch, heads, length, dim = x.shape
    windows = _windows(x, filters.shape[1])
    num, width = windows.shape[1:3]
    block = width - filters.shape[1] + 1
    # Row i of the banded matrix is the filter, i places to the right.
    rows = F.pad(filters, (0, block)).repeat(1, block)[:, : block * width].view(heads, 1, block, width)
    y = x.new_empty(heads, num, block, batch * dim)
    for head in range(heads):
        torch.bmm(rows[head].expand(num, -1, -1), windows[head], out=y[head])
    return y.view(heads, num * block, batch, dim)[:, :length].permute(2, 0, 1, 3)


def _correlate(gradient: Tensor, x: Tensor, size: int) -> Tensor:
    """Gradient (H, K) of the filters."""
    windows = _windows(x, size)
    heads, num, width, columns = windows.shape
    block = width - size + 1
    blocks = _blocks(gradient, num * block).view(heads, num, block, columns)
    products = torch.stack([torch.bmm(blocks[h], windows[h].mT).sum(0) for h in range(heads)])
    return products.as_strided((heads, block, size), (block * width, width + 1, 1)).sum(1)


def _windows(x: Tensor, size: int) -> Tensor:
    """What each block of tokens sees, (H, N / block, block + K - 1, B D): overlapping views of one buffer."""
    length = x.shape[2]
    block = min(BLOCK, length)
    num = -(-length // block)
    tokens = _blocks(x, num * block + size - 1, size // 2)
    columns = tokens.shape[2]
    strides = (tokens.stride(0), block * columns, columns, 1)
    return tokens.as_strided((x.shape[1], num, block + size - 1, columns), strides)


def _blocks(x: Tensor, length: int, before: int = 0) -> Tensor:
    """(B, H, N, D) to (H, `length`, B D), zeros around the tokens."""
    batch, heads, tokens, dim = x.shape
    buffer = x.new_zeros(heads, length, batch * dim)
    buffer[:, before : before + tokens].view(heads, tokens, batch, dim).copy_(x.permute(1, 2, 0, 3))
    return buffer
