"""AFT-full: AFT with a bias for each pair of positions."""

from __future__ import annotations

from torch import Tensor

from reattend.attention.aft.full import AFTFull
from reattend.attention.naive.aft.formula import outputs


def forward(
    mixer: AFTFull,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """AFT (arXiv 2105.14103, Eqn 2), (B, N, D) in float64 from the mixer's own parameters."""

    def bias(t: int, j: int) -> Tensor:
        if mixer.bias.weight is not None:
            return mixer.bias.weight[t, j].double()
        rows, columns = mixer.bias.factors()
        return rows[t].double() @ columns[j].double()

    return outputs(mixer, x, padding_mask, bias)
