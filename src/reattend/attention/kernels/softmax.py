"""The softmax kernel, fused or written out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.contract import Capabilities, MixerSpec, State
from reattend.attention.ops.precision import without_autocast
from reattend.attention.slots import EVERYTHING, HeadGroup, Kernel


class SoftmaxKernel(Kernel):
    """h_i = sum_j softmax_j(q_i . k_j / sqrt(D)) v_j (primal-dual paper, Eqn 2).

    Args:
        spec: the place it is built for.
        fused: one call of `scaled_dot_product_attention`, memory linear in length; otherwise the weights (B, H, N, M)
            are formed, as the implementations did whose memory and time the papers measured. Same result.
    """

    shift_invariant = True
    dropout = True

    def __init__(self, spec: MixerSpec, *, fused: bool = True) -> None:
        super().__init__(spec)
        self.fused = fused

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return replace(EVERYTHING, constant_state=False, time_exponent=2.0)

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
        q, k = q.to(v.dtype), k.to(v.dtype)
        if key_mask is None:
            return self._attend(q, k, v, None, self.causal, dropout)
        visible = self._visible(q, key_mask)
        blind = ~visible.any(-1, keepdim=True)
        # A softmax over nothing is NaN, so a query without a key sees all of them, and its result is thrown away.
        return self._attend(q, k, v, visible | blind, False, dropout).masked_fill(blind, 0.0)

    def _visible(self, q: Tensor, key_mask: Tensor) -> Tensor:
        """(B, 1, 1 or N, M), True where a query may see a key."""
        visible = key_mask[:, None, None, :]
        return visible & self._past(q) if self.causal else visible

    @staticmethod
    def _past(q: Tensor) -> Tensor:
        return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, causal: bool, dropout: float) -> Tensor:
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout, is_causal=causal)
        weights = self._softmax(q, k, self._past(q) if causal else visible)
        return F.dropout(weights, dropout) @ v

    def _softmax(self, q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
        logits = self._logits(q, k)
        if visible is not None:
            logits = logits.masked_fill(~visible, -math.inf)
        return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).to(q.dtype)

    def _logits(self, q: Tensor, k: Tensor) -> Tensor:
        if q.dtype == torch.float16:  # Features of 120 give logits beyond its range; the fused call knows this too.
            q, k = q.float(), k.float()
        with without_autocast(q):
            return (q / math.sqrt(self.head_dim)) @ k.mT

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        group: HeadGroup | None = None,
    ) -> Tensor:
        if key_mask is None:
            return self._softmax(q, k, self._past(q) if self.causal else None)
        visible = self._visible(q, key_mask)
        blind = ~visible.any(-1, keepdim=True)
        return self._softmax(q, k, visible | blind).masked_fill(blind, 0.0)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Logits and weighted values; a causal kernel is counted whole, as is usual."""
        return 4 * num_queries * num_keys * self.head_dim

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        empty = torch.zeros(batch_size, self.num_heads, 0, self.head_dim, device=device, dtype=dtype)
        return {"keys": empty, "values": empty}

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        keys = torch.cat([state["keys"], k], dim=2)
        values = torch.cat([state["values"], v], dim=2)
        out = self._attend(q.to(values.dtype), keys.to(values.dtype), values, None, False, 0.0)
        return out, {"keys": keys, "values": values}
