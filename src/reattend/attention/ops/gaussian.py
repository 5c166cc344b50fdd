"""The Gaussian kernel of two sets of vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("reattend::gaussian_kernel", mutates_args=())
def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x_i - y_j|^2 / 2) for x (..., N, D) and y (..., M, D): (..., N, M).

    Squared distances are differences of large numbers where vectors are long, so they are formed in float64; only the
    result is kept for the gradient.
    """
    wide_x, wide_y = x.double(), y.double()
    norms = wide_x.square().sum(-1)[..., :, None] + wide_y.square().sum(-1)[..., None, :]
    return norms.sub_(wide_x @ wide_y.mT, alpha=2).clamp_(min=0).mul_(-0.5).exp_().to(x.dtype)


@gaussian_kernel.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], y.shape[-2])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, y, kernel = ctx.saved_tensors
    weights = grad * kernel
    return (
        weights @ y - weights.sum(-1, keepdim=True) * x,
        weights.mT @ x - weights.sum(-2).unsqueeze(-1) * y,
    )


gaussian_kernel.register_autograd(_differentiate, setup_context=_save)
