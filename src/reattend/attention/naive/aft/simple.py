"""AFT-simple: AFT with no bias."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.aft.simple import AFTSimple
from reattend.attention.naive.aft.formula import outputs


def forward(
    mixer: AFTSimple,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """AFT with w = 0 (arXiv 2105.14103, Eqn 5), (B, N, D) in float64 from the mixer's own parameters."""
    return outputs(mixer, x, padding_mask, lambda t, j: x.new_zeros((), dtype=torch.float64))
