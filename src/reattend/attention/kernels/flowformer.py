"""Flow-Attention, the kernel of the Flowformer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from reattend.attention.contract import Capabilities, MixerSpec, State
from reattend.attention.ops.linear_attention import linear_attention
from reattend.attention.ops.precision import without_autocast
from reattend.attention.slots import EVERYTHING, HeadGroup, Kernel

NO_MAP = "its weights on the values do not sum to one"


class FlowformerKernel(Kernel):
    """h_i = sigmoid(n/m I'_i) (phi(q_i) / I_i) . sum_j phi(k_j) m softmax_j(O'_j) v_j, phi = sigmoid.

    Flow-Attention (Wu et al. 2022, arXiv 2202.06258) for n queries and m keys: incoming flow I_i = phi(q_i) . sum_j
    phi(k_j), outgoing flow O_j = phi(k_j) . sum_i phi(q_i), and what is left of each when the other is conserved,
    I'_i = phi(q_i) . sum_j phi(k_j) / O_j and O'_j = phi(k_j) . sum_i phi(q_i) / I_i. Keys compete by softmax(O'),
    queries are allocated sigmoid(I'). The factors n/m and m are those of the authors' code. All sums are over real
    queries and keys.

    Causal, as in the authors' code, every sum over tokens ends at the later one of the pair's own token: with t = i + 1

        I_i = phi(q_i) . sum_{j<=i} phi(k_j)                    O_j = phi(k_j) . sum_{i<=j} phi(q_i)
        I'_i = phi(q_i) . sum_{j<=i} t_j phi(k_j) / O_j / t_i    O'_j = phi(k_j) . sum_{i<=j} t_i phi(q_i) / I_i / t_j
        h_i = sigmoid(I'_i) (phi(q_i) / I_i) . sum_{j<=i} phi(k_j) t_j exp(O'_j) / (sum_{l<=j} exp(O'_l)) v_j

    so that its last row is not that of the other form. The code adds 1e-6 to queries, keys and their sums, and some of
    its versions clamp O' to [-1, 1], [-5, 5] or [-10, 10]; here nothing is added or clamped, the softmax is taken
    relative to its largest logit, and a flow of exactly zero gives zero.

    Args:
        spec: the place it is built for.
    """

    pooled_keys: ClassVar[bool] = False

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(spec)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return replace(EVERYTHING, attention_map=False, reasons={"attention_map": NO_MAP})

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
            wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
            query, key, value = q.to(wide).sigmoid(), k.to(wide).sigmoid(), v.to(wide)
            if key_mask is not None:
                key = key.masked_fill(~key_mask[:, None, :, None], 0.0)
            out = (_causal if self.causal else _over_all)(query, key, value, query_mask, key_mask)
        return out.to(v.dtype)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Four sums of features and their products, pairs of keys and values, and their product with each query."""
        pairs = num_queries + num_keys
        return self.head_dim * pairs * (2 * self.head_dim + 6)

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        wide = torch.promote_types(dtype, torch.float32)
        batch_heads = (batch_size, self.num_heads)
        row = (*batch_heads, 1, self.head_dim)
        sums = ("query_sum", "key_sum", "key_per_outgoing", "query_per_incoming")
        return {name: torch.zeros(row, device=device, dtype=wide) for name in sums} | {
            "key_values": torch.zeros(*batch_heads, self.head_dim, self.head_dim, device=device, dtype=wide),
            "log_competition": torch.full((*batch_heads, 1, 1), -math.inf, device=device, dtype=wide),
            "count": torch.zeros(batch_size, 1, 1, 1, device=device, dtype=wide),
        }

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        with without_autocast(q):
            wide = state["query_sum"].dtype
            query, key, value = q.to(wide).sigmoid(), k.to(wide).sigmoid(), v.to(wide)
            count = state["count"] + 1
            query_sum, key_sum = state["query_sum"] + query, state["key_sum"] + key
            per_incoming = _divide(query, _dot(query, key_sum))
            query_per_incoming = state["query_per_incoming"] + count * per_incoming
            key_per_outgoing = state["key_per_outgoing"] + count * _divide(key, _dot(key, query_sum))
            conserved = _dot(key, query_per_incoming) / count
            total = torch.logaddexp(state["log_competition"], conserved)
            key_values = state["key_values"] + key.mT * (value * count * (conserved - total).exp())
            out = (_dot(query, key_per_outgoing) / count).sigmoid() * (per_incoming @ key_values)
        return out.to(v.dtype), {
            "query_sum": query_sum,
            "key_sum": key_sum,
            "key_per_outgoing": key_per_outgoing,
            "query_per_incoming": query_per_incoming,
            "key_values": key_values,
            "log_competition": total,
            "count": count,
        }


def _over_all(query: Tensor, key: Tensor, value: Tensor, query_mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
    """Features (B, H, N, F) and (B, H, M, F), zero at padded keys, and values (B, H, M, D), to (B, H, N, D)."""
    per_incoming = _divide(query, query @ key.sum(-2, keepdim=True).mT)
    num_queries: int | Tensor = query.shape[-2]
    num_keys: int | Tensor = key.shape[-2]
    real_query, real_per_incoming = query, per_incoming
    if query_mask is not None:
        padding = ~query_mask[:, None, :, None]
        real_query, real_per_incoming = query.masked_fill(padding, 0.0), per_incoming.masked_fill(padding, 0.0)
        num_queries = query_mask.sum(1)[:, None, None, None].to(query.dtype)
    per_outgoing = _divide(key, key @ real_query.sum(-2, keepdim=True).mT)
    conserved_outgoing = key @ real_per_incoming.sum(-2, keepdim=True).mT
    conserved_incoming = query @ per_outgoing.sum(-2, keepdim=True).mT
    if key_mask is not None:
        num_keys = key_mask.sum(1).clamp(min=1)[:, None, None, None].to(key.dtype)
        lowest = torch.finfo(key.dtype).min
        conserved_outgoing = conserved_outgoing.masked_fill(~key_mask[:, None, :, None], lowest)
    competition = conserved_outgoing.softmax(-2) * num_keys
    allocation = (conserved_incoming * (num_queries / num_keys)).sigmoid()
    return allocation * (per_incoming @ (key.mT @ (value * competition)))


def _causal(query: Tensor, key: Tensor, value: Tensor, query_mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
    """As `_over_all` with N = M and sums over the past; both masks are one."""
    if key_mask is None:
        count = torch.arange(1, query.shape[-2] + 1, device=query.device, dtype=query.dtype)[:, None]
        real_query = query
    else:
        count = key_mask.cumsum(1).clamp(min=1).to(query.dtype)[:, None, :, None]
        real_query = query.masked_fill(~key_mask[:, None, :, None], 0.0)
    per_incoming = _divide(query, _dot(query, key.cumsum(-2)))
    per_outgoing = _divide(key, _dot(key, real_query.cumsum(-2)))
    real_per_incoming = per_incoming if key_mask is None else per_incoming.masked_fill(~key_mask[:, None, :, None], 0.0)
    conserved_incoming = _dot(query, (count * per_outgoing).cumsum(-2)) / count
    conserved_outgoing = _dot(key, (count * real_per_incoming).cumsum(-2)) / count
    if key_mask is not None:
        lowest = torch.finfo(key.dtype).min
        conserved_outgoing = conserved_outgoing.masked_fill(~key_mask[:, None, :, None], lowest)
    competition = count * (conserved_outgoing - conserved_outgoing.logcumsumexp(-2)).exp()
    weighted = linear_attention(per_incoming, key, value * competition, causal=True, normalised=False)
    return conserved_incoming.sigmoid() * weighted


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, keepdim=True)


def _divide(features: Tensor, flow: Tensor) -> Tensor:
    # Below this the products that sum to a flow are no longer normal floats.
    limits = torch.finfo(flow.dtype)
    zero = flow <= limits.tiny / limits.eps
    return torch.where(zero, 0.0, features / torch.where(zero, 1.0, flow))
