"""Softmax attention of blocks of queries to the tokens of their block and just before it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reattend.attention.contract import Capabilities, MixerSpec, State
from reattend.attention.ops.attend_with_lse import attend_with_lse, merge
from reattend.attention.ops.blocks import SMALLEST_BLOCK, attend_near, round_up
from reattend.attention.ops.precision import without_autocast
from reattend.attention.slots import EVERYTHING, HeadGroup, Kernel

PUBLISHED_BLOCK = 256


class ImageTransformerKernel(Kernel):
    """h_i = sum_{j in M(i)} softmax_j(q_i . k_j / sqrt(D)) v_j, M(i) the memory block of i's query block.

    Local attention in one dimension (Image Transformer, Parmar et al. 2018, arXiv 1802.05751, section 4.3): tokens are
    cut into query blocks of l_q, and all queries of block b share the keys of that block and of the l_m tokens before,

        M(i) = {j: b l_q - l_m <= j < (b + 1) l_q},   b = floor(i / l_q),

    and j <= i when causal. Not causal, the l_m tokens after the block belong to it too, so that neither direction is
    preferred; the paper has the causal form alone. A query at the end of a block so sees more of the past than one at
    its beginning, unlike in a sliding window. Time and memory are O(N (l_q + l_m)); decoding keeps l_q + l_m keys and
    values.

    Blocks are counted after the prefix tokens, which see all tokens and are seen by all; when causal, prefix tokens are
    tokens as others. Images are read line by line, so that a block is a run of pixels; the paper's other form, blocks
    of rectangles, is left out.

    Args:
        spec: the place it is built for.
        window: l_q; None for 256, as published.
        memory: l_m; None for l_q, as published.
    """

    shift_invariant = True
    pooled_keys = False

    def __init__(self, spec: MixerSpec, *, window: int | None = None, memory: int | None = None) -> None:
        super().__init__(spec)
        self.window = PUBLISHED_BLOCK if window is None else window
        self.memory = self.window if memory is None else memory
        self.after = 0 if spec.causal else self.memory
        self.prefix = 0 if spec.causal else spec.prefix_tokens

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return replace(
            EVERYTHING,
            context=False,
            reasons={"context": "a query's block is one of its own sequence; a context's tokens have other positions"},
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        window, memory = options.get("window"), options.get("memory")
        found = []
        if window is not None and window < 1:
            found.append(f"window={window} must be at least 1")
        if memory is not None and memory < 0:
            found.append(f"memory={memory} must not be negative")
        return found

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
        prefix = min(self.prefix, q.shape[2])
        if not prefix:
            return self._attend_body(q, k, v, key_mask)[0]
        mask = None if key_mask is None else key_mask[:, None, None]
        outs = [attend_with_lse(q[:, :, :prefix], k, v, mask)[0]]
        if prefix < q.shape[2]:
            body, first = slice(prefix, None), slice(prefix)
            real = None if key_mask is None else key_mask[:, body]
            mask = None if mask is None else mask[..., first]
            parts = [
                self._attend_body(q[:, :, body], k[:, :, body], v[:, :, body], real),
                attend_with_lse(q[:, :, body], k[:, :, first], v[:, :, first], mask),
            ]
            outs.append(merge(*zip(*parts, strict=True))[0])
        return torch.cat(outs, dim=2)

    def _attend_body(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attention among the tokens after the prefix."""
        # Small blocks are taken several at a time.
        block = round_up(max(SMALLEST_BLOCK, self.window), self.window)
        return attend_near(q, k, v, self._visible, block=block, before=self.memory, after=self.after, real=real)

    def _visible(self, i: Tensor, j: Tensor, real: Tensor) -> Tensor:
        """Whether query i sees the real token j."""
        return (self._in_memory(i, j) & real).squeeze(-1)

    def _in_memory(self, i: Tensor, j: Tensor) -> Tensor:
        start = i.div(self.window, rounding_mode="floor") * self.window
        inside = (j >= start - self.memory) & (j < start + self.window + self.after)
        return inside & (j <= i) if self.causal else inside

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        group: HeadGroup | None = None,
    ) -> Tensor:
        position = torch.arange(q.shape[2], device=q.device)
        i, j = position[:, None], position
        seen = self._in_memory(i - self.prefix, j - self.prefix) | (i < self.prefix) | (j < self.prefix)
        seen = seen[None, None] if key_mask is None else seen & key_mask[:, None, None]
        wide = torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q):
            logits = (q.to(wide) / math.sqrt(self.head_dim)) @ k.to(wide).mT
        blind = ~seen.any(-1, keepdim=True)
        return logits.masked_fill(~(seen | blind), -math.inf).softmax(-1).masked_fill(blind, 0.0).to(q.dtype)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Logits and weighted values of the memory blocks, each counted whole, as is usual."""
        return 4 * num_queries * min(num_keys, self.memory + self.window + self.after) * self.head_dim

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        kept = self.memory + self.window
        empty = torch.zeros(batch_size, self.num_heads, kept, self.head_dim, device=device, dtype=dtype)
        count = torch.zeros(batch_size, dtype=torch.int64, device=device)
        return {"keys": empty, "values": empty, "count": count}

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        keys = torch.cat([state["keys"][:, :, 1:], k], dim=2)
        values = torch.cat([state["values"][:, :, 1:], v], dim=2)
        count = state["count"]
        position = count[:, None] + torch.arange(1 - keys.shape[2], 1, device=q.device)
        visible = (position >= 0) & self._in_memory(count[:, None], position)
        out, _ = attend_with_lse(q.to(values.dtype), keys.to(values.dtype), values, visible[:, None, None])
        return out.to(v.dtype), {"keys": keys, "values": values, "count": count + 1}
