"""Vectors of length one."""

from __future__ import annotations

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """x / |x| over the last dimension; zero, with zero gradient, for a vector whose 1 / |x| is close to overflow.

    The largest entry is divided out first, so that no square over- or underflows.
    """
    limits = torch.finfo(x.dtype)
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest <= limits.tiny / limits.eps
    x = torch.where(zero, 0.0, x / torch.where(zero, 1.0, largest))
    return x / torch.where(zero, 1.0, torch.linalg.vector_norm(x, dim=-1, keepdim=True))
