"""Learned biases between the positions of a sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PositionBias(nn.Module):
    """w_tt' for pairs of positions, all free or u_t . v_t'.

    Parameters are Gaussian: `weight` (T, W), W biases for each position t, or `rows` u and `columns` v, both (T, d').

    Args:
        length: T.
        width: W.
        rank: d', or None for free biases.
        std: standard deviation of the parameters.
    """

    weight: nn.Parameter | None
    rows: nn.Parameter | None
    columns: nn.Parameter | None

    def __init__(self, length: int, width: int, rank: int | None, std: float) -> None:
        super().__init__()
        self.register_parameter("weight", _gaussian(length, width, std) if rank is None else None)
        self.register_parameter("rows", None if rank is None else _gaussian(length, rank, std))
        self.register_parameter("columns", None if rank is None else _gaussian(length, rank, std))

    def factors(self) -> tuple[Tensor, Tensor]:
        """u and v in float32 at least, where there is no `weight`."""
        assert self.rows is not None
        assert self.columns is not None
        wide = torch.promote_types(self.rows.dtype, torch.float32)
        return self.rows.to(wide), self.columns.to(wide)

    @property
    def flops_of_pair(self) -> int:
        """Of a bias and its exponential, 2 per multiply-add; an exponential is one operation."""
        return 1 if self.rows is None else 1 + 2 * self.rows.shape[1]


def shared_bias_flops(length: int, dim: int, bias: PositionBias, causal: bool) -> int:
    """Floating-point operations of `shared_bias_average` for one sample with a key for each of `dim` channels.

    The biases are those of all pairs, also when causal; sums are over the past alone.
    """
    pairs = length * (length + 1) // 2 if causal else length**2
    return length**2 * bias.flops_of_pair + pairs * 4 * dim + 3 * length * dim


def bias_problems(options: dict[str, Any]) -> list[str]:
    """What is wrong with the values of `bias_rank` and `bias_std`."""
    found = []
    rank, std = options.get("bias_rank"), options.get("bias_std", 0.1)
    if rank is not None and rank < 1:
        found.append(f"bias_rank={rank} must be at least 1")
    if std < 0:
        found.append(f"bias_std={std} must not be negative")
    elif std == 0 and rank is not None:
        found.append("bias_std=0 with a bias_rank gives factors that never get a gradient")
    return found


def mean_entropy(logits: Tensor) -> Tensor:
    """Mean over all rows of the entropy, in nats, of softmax over the last dimension; -inf is left out.

    In float32 at least.
    """
    log_shares = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    entropies: Tensor = -(log_shares.exp() * torch.where(log_shares.isinf(), 0.0, log_shares)).sum(-1)
    return entropies.mean()


def _gaussian(length: int, width: int, std: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(length, width).normal_(0, std))
