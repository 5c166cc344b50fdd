"""Softmax attention to a fixed sparse pattern of keys."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.contract import Capabilities, MixerSpec, State
from reattend.attention.ops.attend_with_lse import attend_with_lse, merge
from reattend.attention.ops.blocks import SMALLEST_BLOCK, attend_near, round_up
from reattend.attention.ops.far_keys import attend_columns, attend_earlier_summaries, attend_summaries
from reattend.attention.ops.flex_pattern import attend_pattern
from reattend.attention.ops.precision import without_autocast
from reattend.attention.slots import EVERYTHING, HeadGroup, Kernel


class SparseKernel(Kernel):
    """h_i = sum_{j in S_i} softmax_j(q_i . k_j / sqrt(D)) v_j (Sparse Transformer, Child et al. 2019, section 4.2 f.).

        strided: S_i = {j: |i - j| < l or (i - j) mod l = 0}
        fixed:   S_i = {j: floor(i / l) = floor(j / l) or j mod l >= l - c}

    and j <= i when causal. Every head has both parts of its pattern, in one softmax (the paper's "merged head").
    Positions are counted after the prefix tokens, which see all tokens and are seen by all. A pooled key is in S_i if
    one of the real tokens that it stands for is. Time is O(N (l + N / l)) or O(N (l + c N / l)). Memory is linear in N
    but for one mask of O(N l) entries, which all heads share.

    Args:
        spec: the place it is built for.
        pattern: which of the two.
        window: l; None for the power of two that is nearest to the square root of `spec.max_length`.
        num_summaries: c of the fixed pattern, the last tokens of each block that all later ones see; None for 8, or a
            quarter of a window that is shorter than 32.
        flex: on a CUDA device, heads without pooled keys go through FlexAttention. Same result.
    """

    shift_invariant = True

    def __init__(
        self,
        spec: MixerSpec,
        *,
        pattern: Literal["strided", "fixed"] = "strided",
        window: int | None = None,
        num_summaries: int | None = None,
        flex: bool = False,
    ) -> None:
        super().__init__(spec)
        self.pattern = pattern
        self.window = _window(spec, window)
        self.num_summaries = num_summaries or max(1, min(8, self.window // 4))
        self.prefix = spec.prefix_tokens
        self.flex = flex

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return replace(
            EVERYTHING,
            context=False,
            constant_state=False,
            time_exponent=1.5,
            reasons={"context": "the pattern is one of positions in one sequence; a context's tokens have others"},
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        window, summaries = options.get("window"), options.get("num_summaries")
        if window is not None and window < 1:
            return [f"window={window} must be at least 1"]
        if summaries is not None and not 1 <= summaries <= _window(spec, window):
            return [f"num_summaries={summaries} must be from 1 to the window of {_window(spec, window)} tokens"]
        return []

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
        scale, prefix = self._places(q, group)
        if self.flex and q.is_cuda and scale == 1:
            return attend_pattern(q, k, v, self._sees, key_mask)
        if not q.numel():
            return torch.zeros_like(q)
        outs = []
        if prefix:
            seen = slice(0, prefix if self.causal else None)
            mask = None if key_mask is None else key_mask[:, None, None, seen]
            outs.append(attend_with_lse(q[:, :, :prefix], k[:, :, seen], v[:, :, seen], mask, self.causal)[0])
        if prefix < q.shape[2]:
            real = self._real(key_mask, query_mask, scale)
            real = None if real is None else real[:, prefix:]
            body = slice(prefix, None)
            parts = [
                attend(q[:, :, body], k[:, :, body], v[:, :, body], real, scale)
                for attend in (self._attend_near, self._attend_far)
            ]
            if prefix:
                mask = None if key_mask is None else key_mask[:, None, None, :prefix]
                parts.append(attend_with_lse(q[:, :, body], k[:, :, :prefix], v[:, :, :prefix], mask))
            outs.append(merge(*zip(*parts, strict=True))[0])
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)

    def _places(self, q: Tensor, group: HeadGroup | None) -> tuple[int, int]:
        """Tokens per key, and number of prefix tokens."""
        return (1 if group is None else group.scale), min(self.prefix, q.shape[2])

    @staticmethod
    def _real(key_mask: Tensor | None, query_mask: Tensor | None, scale: int) -> Tensor | None:
        """(B, N), True at real tokens."""
        return query_mask if scale > 1 else key_mask

    def _in_near(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether token j is in the first part of S_i."""
        if self.pattern == "fixed":
            near = i.div(self.window, rounding_mode="floor") == j.div(self.window, rounding_mode="floor")
        else:
            near = (i - j).abs() < self.window
        return near & (j <= i) if self.causal else near

    def _in_far(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether token j is in the second part of S_i."""
        if self.pattern == "fixed":
            far = j.remainder(self.window) >= self.window - self.num_summaries
        else:
            far = (i - j).remainder(self.window) == 0
        return far & (j <= i) if self.causal else far

    def _visible(self, i: Tensor, j: Tensor, real: Tensor) -> Tensor:
        """Keys near the query that the other part leaves out."""
        near = (real & self._in_near(i, j)).any(-1)
        if self.causal and self.pattern == "fixed":
            return near
        return near & ~(real & self._in_far(i, j)).any(-1)

    def _attend_near(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, scale: int) -> tuple[Tensor, Tensor]:
        """Attention to the first part of the pattern without what the second has."""
        if self.pattern == "fixed":
            block, before = round_up(SMALLEST_BLOCK, math.lcm(self.window, scale)), 0
        else:
            block, before = round_up(max(self.window, SMALLEST_BLOCK), scale), self.window - 1
        after = 0 if self.causal else before
        return attend_near(q, k, v, self._visible, block=block, before=before, after=after, real=real, scale=scale)

    def _attend_far(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, scale: int) -> tuple[Tensor, Tensor]:
        """Attention to the second part of the pattern."""
        # A window beyond the sequence has the same pattern, and would be filled up in vain.
        if self.pattern == "strided":
            window = min(self.window, round_up(q.shape[2], scale))
            return attend_columns(q, k, v, window, causal=self.causal, real=real, scale=scale)
        window = min(self.window, round_up(q.shape[2] + self.num_summaries, scale))
        if self.causal:
            return attend_earlier_summaries(q, k, v, window, self.num_summaries, real=real)
        return attend_summaries(q, k, v, window, self.num_summaries, real=real, scale=scale)

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        group: HeadGroup | None = None,
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        visible = self._pattern(q, key_mask, query_mask, group)
        with without_autocast(q):
            logits = (q.to(wide) / math.sqrt(self.head_dim)) @ k.to(wide).mT
        blind = ~visible.any(-1, keepdim=True)
        return logits.masked_fill(~(visible | blind), -math.inf).softmax(-1).masked_fill(blind, 0.0).to(q.dtype)

    def _pattern(
        self, q: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, group: HeadGroup | None
    ) -> Tensor:
        """(B or 1, 1, N, M), True where a query sees a key."""
        scale, prefix = self._places(q, group)
        length = q.shape[2]
        seen = self._sees(torch.arange(length, device=q.device)[:, None], torch.arange(length, device=q.device))
        real = self._real(key_mask, query_mask, scale)
        seen = seen[None, None] if real is None else seen & real[:, None, None]
        tokens = F.pad(seen[..., prefix:], (0, -(length - prefix) % scale))
        return torch.cat([seen[..., :prefix], tokens.unflatten(-1, (-1, scale)).any(-1)], dim=-1)

    def _sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether token i sees token j, prefix tokens among them."""
        prefix = (i < self.prefix) | (j < self.prefix)
        prefix = prefix & (j <= i) if self.causal else prefix
        i, j = i - self.prefix, j - self.prefix
        return prefix | self._in_near(i, j) | self._in_far(i, j)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Logits and weighted values of the keys in the pattern; a causal kernel is counted whole, as is usual."""
        ratio = num_keys / max(num_queries, 1)
        rows = num_queries / self.window
        near, far = (self.window, self.num_summaries * rows * ratio)
        if self.pattern == "strided":
            near, far = 2 * self.window - 1, rows
        return 4 * num_queries * min(num_keys, round(near * ratio + far)) * self.head_dim

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        empty = torch.zeros(batch_size, self.num_heads, 0, self.head_dim, device=device, dtype=dtype)
        return {"keys": empty, "values": empty}

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        keys = torch.cat([state["keys"], k], dim=2)
        values = torch.cat([state["values"], v], dim=2)
        positions = torch.arange(keys.shape[2], device=q.device)
        seen = self._sees(positions[-1:], positions)
        out, _ = attend_with_lse(q.to(values.dtype), keys[:, :, seen].to(values.dtype), values[:, :, seen])
        return out, {"keys": keys, "values": values}


def _window(spec: MixerSpec, window: int | None) -> int:
    if window is not None:
        return window
    return 1 << math.floor(math.log2(max(1, spec.max_length - spec.prefix_tokens)) / 2 + 0.5)
