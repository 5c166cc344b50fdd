"""cosFormer: rectified queries and keys, reweighted by the cosine of their distance."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from reattend.attention.contract import Capabilities, MixerSpec, State
from reattend.attention.ops.linear_attention import initial_state, linear_attention, linear_step
from reattend.attention.ops.precision import without_autocast
from reattend.attention.slots import EVERYTHING, HeadGroup, Kernel


class CosformerKernel(Kernel):
    """h_i = sum_j s_ij v_j / sum_j s_ij with s_ij = relu(q_i) . relu(k_j) cos(pi/2 (i - j) / M).

    Qin et al. (2022, arXiv 2202.08791). Since cos(a - b) = cos a cos b + sin a sin b, it is linear attention with the
    features [relu(x_i) cos(pi i / 2M), relu(x_i) sin(pi i / 2M)], linear in time and memory.

    M is the number of real tokens of the sample, the larger one of queries and keys where they come from two sequences,
    and position i counts real tokens only, from the start of its own sequence: padding changes nothing. A causal output
    must not depend on how long the sequence will be, so there M is `MixerSpec.max_length`; the published code takes the
    length at hand. It also keeps the normaliser above 1e-6. Here a query that no key is similar to gets zero, with zero
    gradient.

    Args:
        spec: the place it is built for.

    Raises:
        ValueError: causal, for more tokens than `max_length`: their weights would be negative.
    """

    pooled_keys: ClassVar[bool] = False

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(spec)
        self.max_length = spec.max_length

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
        query, key = self._features(q, k, query_mask, key_mask)
        return linear_attention(query, key, v, causal=self.causal).to(v.dtype)

    def _features(
        self, q: Tensor, k: Tensor, query_mask: Tensor | None, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(B, H, N, 2D) and (B, H, M, 2D), zero at padded keys."""
        if self.causal and q.shape[-2] > self.max_length:
            raise ValueError(f"{q.shape[-2]} tokens, but causal cosFormer is built for max_length={self.max_length}")
        wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
        query_at, num_queries = _positions(q, query_mask, wide)
        key_at, num_keys = _positions(k, key_mask, wide)
        length = self.max_length if self.causal else torch.maximum(num_queries, num_keys).clamp(min=1)
        key = _features(k.to(wide), key_at / length)
        if key_mask is not None:
            key = key.masked_fill(~key_mask[:, None, :, None], 0.0)
        return _features(q.to(wide), query_at / length), key

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
            query, key = self._features(q, k, query_mask, key_mask)
            similarity = query @ key.mT
            similarity = similarity.tril() if self.causal else similarity
            total = similarity.sum(-1, keepdim=True)
            return similarity / total.masked_fill(total == 0, 1.0)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Sums over the keys, then numerator and normaliser of each query; the causal form as its recurrence."""
        features = 2 * self.head_dim
        return 2 * features * (num_keys * self.head_dim + num_queries * (self.head_dim + 1)) + features * num_keys

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        state = initial_state(batch_size, self.num_heads, 2 * self.head_dim, self.head_dim, device, dtype)
        return state | {"position": torch.zeros(batch_size, 1, 1, 1, device=device, dtype=torch.float32)}

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
        position = state["position"]
        part = position.to(wide) / self.max_length
        query, key = _features(q.to(wide), part), _features(k.to(wide), part)
        sums = {name: kept for name, kept in state.items() if name != "position"}
        out, sums = linear_step(query, key, v, sums)
        return out.to(v.dtype), sums | {"position": position + 1}


def _positions(x: Tensor, mask: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Number of real tokens before each token of x (B, H, N, D), at least 0, and of all; shapes as (B, 1, N, 1)."""
    if mask is None:
        mask = torch.ones(1, x.shape[-2], dtype=torch.bool, device=x.device)
    counts = mask.cumsum(1)
    positions = (counts - 1).clamp(min=0)[:, None, :, None]
    return positions.to(dtype), mask.sum(1)[:, None, None, None].to(dtype)


def _features(x: Tensor, part: Tensor) -> Tensor:
    """[relu(x) cos(pi/2 part), relu(x) sin(pi/2 part)]."""
    rectified, angle = x.relu(), part * (math.pi / 2)
    return torch.cat([rectified * angle.cos(), rectified * angle.sin()], -1)
