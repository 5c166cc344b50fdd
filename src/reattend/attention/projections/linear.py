"""The projection of plain attention: the linear layer and nothing after it."""

from __future__ import annotations

from typing import Any

from reattend.attention.contract import Capabilities
from reattend.attention.slots import EVERYTHING, Projection


class LinearProjection(Projection):
    """Q = X W_Q^T, K = X W_K^T (primal-dual paper, Eqn 1): queries and keys stay as the linear layer made them."""

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return EVERYTHING
