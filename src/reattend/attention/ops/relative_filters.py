"""The filters of AFT-conv: as they are learnt, re-parameterised, with a single tap, or with signs."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def reparameterised(weight: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """gamma (w - mean(w)) / std(w) + beta for each filter, with the biased std (arXiv 2105.14103, Eqn 8).

    Args:
        weight: w (h, s, ..., s). A constant filter has no shape, and is beta.
        gamma: (h).
        beta: (h).
    """
    flat = weight.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    variance = centred.square().mean(1, keepdim=True)
    # The variance of a constant filter may be off zero by rounding.
    constant = flat.amax(1, keepdim=True) == flat.amin(1, keepdim=True)
    normal = torch.where(constant, 0.0, centred / torch.where(constant, 1.0, variance).sqrt())
    return (gamma[:, None] * normal + beta[:, None]).view_as(weight)


def one_hot(weight: Tensor, gamma: Tensor, temperature: float | None) -> Tensor:
    """Filters (h, s, ..., s) with one tap that is not 0, of height gamma (h): the largest of `weight`.

    Args:
        weight: (h, s, ..., s).
        gamma: (h).
        temperature: adds Gumbel noise to `weight`, with the gradient of the softmax at this temperature; None for none.
    """
    flat = weight.flatten(1)
    if temperature is None:
        chosen = F.one_hot(flat.argmax(1), flat.shape[1]).to(flat.dtype)
    else:
        chosen = F.gumbel_softmax(flat, temperature, hard=True)
    return (gamma[:, None] * chosen).view_as(weight)


def log_positive(weights: Tensor) -> Tensor:
    """The logarithm of positive weights, -inf for others."""
    positive = weights > 0
    return torch.where(positive, torch.where(positive, weights, 1.0).log(), -math.inf)
