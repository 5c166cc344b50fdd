"""Samples last in memory, where all of them are to meet one matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def batch_last(x: Tensor) -> Tensor:
    """(B, ...) to (..., B), contiguous, as is the gradient."""
    y: Tensor = _BatchLast.apply(x)
    return y


def batch_first(x: Tensor) -> Tensor:
    """(..., B) to (B, ...), contiguous, as is the gradient."""
    y: Tensor = _BatchFirst.apply(x)
    return y


def _to_last(x: Tensor) -> Tensor:
    # Of two dimensions: that copy is blocked.
    return x.reshape(len(x), -1).t().contiguous().view(*x.shape[1:], len(x))


def _to_first(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).t().contiguous().view(x.shape[-1], *x.shape[:-1])


class _BatchLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _to_last(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _to_first(gradient)


class _BatchFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _to_first(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _to_last(gradient)
