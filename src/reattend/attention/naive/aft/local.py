"""AFT-local: AFT with biases in a window."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.aft.local import AFTLocal
from reattend.attention.naive.aft.formula import outputs


def forward(
    mixer: AFTLocal,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """AFT with w = 0 where |t - t'| >= s (arXiv 2105.14103, Eqn 4).

    (B, N, D) in float64 from the mixer's own parameters.
    """

    def bias(t: int, j: int) -> Tensor:
        if abs(t - j) >= mixer.window:
            return torch.tensor(0.0 if mixer.outside == "zero" else -math.inf, dtype=torch.float64)
        assert mixer.bias is not None
        if mixer.bias.weight is not None:
            return mixer.bias.weight[t, j - t + mixer.window - 1].double()
        rows, columns = mixer.bias.factors()
        return rows[t].double() @ columns[j].double()

    return outputs(mixer, x, padding_mask, bias)
