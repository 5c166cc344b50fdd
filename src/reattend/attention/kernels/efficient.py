"""Efficient attention: softmax over the features of queries and over the positions of keys."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from reattend.attention.contract import Capabilities, MixerSpec, State
from reattend.attention.ops import linear_attention as linear
from reattend.attention.ops.causal_feature_softmax import causal_feature_softmax
from reattend.attention.ops.precision import without_autocast
from reattend.attention.slots import EVERYTHING, HeadGroup, Kernel


class EfficientKernel(Kernel):
    """h_i = sum_j (sum_c softmax_c(q_i)_c softmax_j(k_jc)) v_j, linear in time and memory.

    Efficient attention (Shen et al. 2018, arXiv 1812.01243) with softmax normalisation: that of the queries is over the
    features c, that of the keys over positions j; the weights of a query sum to one. There is no factor 1/sqrt(D).

    It has two causal readings, which are not equal:

        per_feature: h_i = sum_c softmax_c(q_i)_c (sum_{j<=i} exp(k_jc) v_j) / (sum_{j<=i} exp(k_jc))
        kernel:      h_i = (sum_c exp(q_ic) sum_{j<=i} exp(k_jc) v_j) / (sum_c exp(q_ic) sum_{j<=i} exp(k_jc))

    The first is the softmax over the positions seen so far; its last row is that of the form that is not causal. The
    second is linear attention with the feature map exp, the usual causal form in public code.

    Args:
        spec: the place it is built for.
        causal_normaliser: which of the two; without effect where not causal.
    """

    def __init__(self, spec: MixerSpec, *, causal_normaliser: Literal["per_feature", "kernel"] = "per_feature") -> None:
        super().__init__(spec)
        self.causal_normaliser = causal_normaliser

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return EVERYTHING

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
        with without_autocast(q):
            query, key, value = _widened(q, k, v, key_mask)
            query = query.softmax(-1)
            if not self.causal:
                out = query @ (key.softmax(-2).mT @ value)
            elif self.causal_normaliser == "per_feature":
                out = causal_feature_softmax(query, key, value)
            else:
                largest = key.detach().amax(-1, keepdim=True)
                out = linear.linear_attention(query, (key - largest).exp(), value, causal=True, key_log_scale=largest)
        return out.to(v.dtype)

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        group: HeadGroup | None = None,
    ) -> Tensor:
        with without_autocast(q):
            query, key, _ = _widened(q, k, k, key_mask)
            query = query.softmax(-1)
            if not self.causal:
                weights = query @ key.softmax(-2).mT
            elif self.causal_normaliser == "per_feature":
                weights = self._per_feature_weights(query, key)
            else:
                largest = key.amax(-1, keepdim=True)
                weights = query @ (key - largest).exp().mT * (largest.mT - largest.cummax(-2).values).exp().tril()
                weights = weights / weights.sum(-1, keepdim=True)
        return weights if key_mask is None else weights.masked_fill(~key_mask[:, None, None, :], 0.0)

    @staticmethod
    def _per_feature_weights(query: Tensor, key: Tensor) -> Tensor:
        weights = query.new_zeros(*query.shape[:-1], key.shape[-2])
        sums = key.logcumsumexp(-2)
        for c in range(query.shape[-1]):  # All at once would be (B, H, N, N, F).
            logits = key[..., None, :, c] - sums[..., c, None]
            weights = weights + query[..., c, None] * logits.clamp(max=0.0).exp().tril()
        return weights

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Products of keys and values, and of queries with them; the causal forms as their recurrences."""
        return 2 * self.head_dim**2 * (num_queries + num_keys)

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        shape = (batch_size, self.num_heads)
        if self.causal_normaliser == "kernel":
            return linear.initial_state(*shape, self.head_dim, self.head_dim, device, dtype, log_scaled=True)
        wide = torch.promote_types(dtype, torch.float32)
        return {
            "averages": torch.zeros(*shape, self.head_dim, self.head_dim, device=device, dtype=wide),
            "log_sums": torch.full((*shape, 1, self.head_dim), -torch.inf, device=device, dtype=wide),
        }

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        with without_autocast(q):
            query, key, value = _widened(q, k, v, None)
            query = query.softmax(-1)
            if self.causal_normaliser == "kernel":
                largest = key.amax(-1, keepdim=True)
                out, state = linear.linear_step(query, (key - largest).exp(), value, state, key_log_scale=largest)
                return out.to(v.dtype), state
            log_sums = torch.logaddexp(state["log_sums"], key)
            kept, new = (state["log_sums"] - log_sums).exp(), (key - log_sums).exp()
            averages = state["averages"] * kept.mT + new.mT * value
            return (query @ averages).to(v.dtype), {"averages": averages, "log_sums": log_sums}


def _widened(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in float32 at least; padded keys are far below all others, their values zero."""
    wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    if key_mask is not None:
        padding = ~key_mask[:, None, :, None]
        k, v = k.masked_fill(padding, torch.finfo(wide).min / 4), v.masked_fill(padding, 0.0)
    return q, k, v
