"""The projection of plain attention: the linear layer and nothing after it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reattend.attention.contract import Capabilities, MixerSpec
from reattend.attention.slots import EVERYTHING, Projection


class LinearProjection(Projection):
    """Q = X W_Q^T, K = X W_K^T (primal-dual paper, Eqn 1): queries and keys stay as the linear layer made them."""

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return EVERYTHING

    def forward(
        self, q: Tensor, k: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return q, k
