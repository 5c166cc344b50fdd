"""The top-k kernel: softmax over the largest logits of each query."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from reattend.attention.contract import MixerSpec, State
from reattend.attention.kernels.softmax import SoftmaxKernel
from reattend.attention.ops.top_k_attention import top_k_attention
from reattend.attention.slots import HeadGroup


class TopKKernel(SoftmaxKernel):
    """h_i = sum_{j in S_i} exp(l_ij) v_j / sum_{j in S_i} exp(l_ij) with l_ij = q_i . k_j / sqrt(D).

    S_i = {j: l_ij >= t_i} with t_i the k-th largest logit of query i, so that equal logits are kept together: explicit
    sparse attention (Zhao et al. 2019, arXiv 1912.11637, Eqn 2-5). Where a query sees k keys or fewer it is softmax
    attention. The gradient goes through the kept logits alone. Logits are float32 at least, as rounding would decide
    what is kept. Time is quadratic in length, memory is linear.

    Args:
        spec: the place it is built for.
        k: number of keys that a query keeps; 8 was best in the paper's translation.
    """

    dropout = False

    def __init__(self, spec: MixerSpec, *, k: int = 8) -> None:
        super().__init__(spec)
        self.k = k

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        k = options.get("k", 8)
        return [] if k >= 1 else [f"k={k} must be 1 or larger"]

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        dropout: float = 0.0,
        group: HeadGroup | None = None,
    ) -> Tensor:
        if self.k >= k.shape[2]:
            return super().forward(q, k, v, key_mask)
        return top_k_attention(q, k, v, key_mask, count=self.k, causal=self.causal)

    def _softmax(self, q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        logits = self._logits(q.to(wide), k.to(wide))
        if visible is not None:
            logits = logits.masked_fill(~visible, -math.inf)
        with torch.no_grad():
            threshold = logits.topk(min(self.k, k.shape[2]), sorted=False).values.amin(-1, keepdim=True)
        return logits.masked_fill(logits < threshold, -math.inf).softmax(-1).to(q.dtype)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """All logits, and the weighted values of the kept ones."""
        return 2 * num_queries * (num_keys + min(self.k, num_keys)) * self.head_dim

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        keys = torch.cat([state["keys"], k], dim=2)
        values = torch.cat([state["values"], v], dim=2)
        weights = self._softmax(q.to(keys.dtype), keys, None)
        return weights.to(values.dtype) @ values, {"keys": keys, "values": values}
