"""Projections of unit vectors, with the sums of their squares and a gradient of their own: fewer passes over memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from reattend.attention.ops.precision import without_autocast


class _CosineScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        limits = torch.finfo(x.dtype)
        # The largest entry is divided out first, so that no square over- or underflows. (torch's infinity norm of many
        # short vectors takes ten times as long on a CPU.)
        largest = x.abs().amax(-1, keepdim=True).transpose(1, 2)
        zero = largest <= limits.tiny / limits.eps
        shrink = largest.masked_fill_(zero, 1.0).reciprocal_().masked_fill_(zero, 0.0)
        z = (x.transpose(1, 2) * shrink).contiguous()
        inverse = torch.linalg.vector_norm(z, dim=-1, keepdim=True).masked_fill_(zero, 1.0).reciprocal_()
        scores = (z @ weight).mul_(inverse)
        counted = scores if mask is None else scores.masked_fill(~mask[:, None, :, None], 0.0)
        ctx.save_for_backward(z, weight, mask, scores, inverse, shrink)
        return scores, counted.square().sum(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_sums: Tensor) -> tuple[Tensor, Tensor, None]:
        z, weight, mask, scores, inverse, shrink = ctx.saved_tensors
        with without_autocast(grad):
            factor = 2.0 * of_sums[:, :, None]
            if mask is not None:
                factor = factor * mask[:, None, :, None]
            grad = torch.addcmul(grad, scores, factor).mul_(inverse)
            of_weight = z.mT @ grad
            along = (grad * scores).sum(-1, keepdim=True).mul_(inverse)
            of_x = torch.addcmul(grad @ weight.mT, z, along, value=-1.0).mul_(shrink)
        return of_x.transpose(1, 2), of_weight.sum_to_size(weight.shape), None


def cosine_scores(x: Tensor, weight: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """W^T x / |x| of each token, and the sum over tokens of each of its squares.

    Args:
        x: (B, N, H, D). A zero vector has zero scores, and zero gradient.
        weight: (B or 1, H, D, S).
        mask: (B, N), True at the tokens that the sums are over; None for all.

    Returns:
        Scores (B, H, N, S), sums (B, H, S).
    """
    scores, sums = _CosineScores.apply(x, weight, mask)
    return scores, sums
