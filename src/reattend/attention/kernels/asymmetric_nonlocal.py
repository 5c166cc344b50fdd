"""Softmax attention to a pyramid of averages of the keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.contract import Capabilities, MixerSpec
from reattend.attention.ops.convolution import scaled_grid
from reattend.attention.ops.precision import without_autocast
from reattend.attention.slots import HeadGroup, Kernel

SIZES = (1, 3, 6, 8)


class AsymmetricNonlocalKernel(Kernel):
    """h_i = sum_a softmax_a(q_i . (P k)_a / sqrt(D)) (P v)_a over anchors a.

    The asymmetric non-local block with pyramid pooling (Zhu et al. 2019, arXiv 1908.07678, section 3.2): P averages
    keys and values over the bins of several partitions of the grid, into n x n bins for each n of `sizes`; 1, 3, 6 and
    8 make 110 anchors, however many tokens. As in adaptive pooling, bin r of n on an axis of N tokens has those from
    floor(r N / n) to ceil((r + 1) N / n) - 1. Time and memory are O(N S) for S anchors.

    Averages are of real tokens, and a bin without one is left out. Without a grid, which the paper always has, n stands
    for n^2 bins of the sequence of real tokens, so that there are as many anchors; that is a design of our own. Prefix
    tokens are in no bin, and each is an anchor of its own. The published block's batch normalisation and ReLU of
    queries and keys, and that these are one and the same, are left out.

    Args:
        spec: the place it is built for; a grid of any number of extents.
        sizes: n of each level of the pyramid.
    """

    shift_invariant = True
    dropout = True
    pooled_keys = False

    def __init__(self, spec: MixerSpec, *, sizes: Sequence[int] = SIZES) -> None:
        super().__init__(spec)
        self.sizes = list(sizes)
        self.grid = spec.grid
        self.prefix = spec.prefix_tokens

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            attention_map=True,
            time_exponent=1.0,
            reasons={
                "causal": "an anchor averages tokens of the future",
                "context": "the grid of a context is not known",
                "decoding": "it is not causal",
            },
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        sizes = options.get("sizes", SIZES)
        if not sizes or min(sizes) < 1:
            return [f"sizes={list(sizes)} must be one or more numbers of at least 1"]
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
        """Attends; arguments and result as those of every kernel.

        Raises:
            ValueError: if the tokens do not fit the grid at any scale.
        """
        pooling, visible = self._pooling(k, key_mask)
        keys, values = (self._pooled(x, pooling, key_mask).to(v.dtype) for x in (k, v))
        if visible is None:
            return F.scaled_dot_product_attention(q.to(v.dtype), keys, values, dropout_p=dropout)
        blind = ~visible.any(-1, keepdim=True)
        mask = (visible | blind).expand(-1, -1, q.shape[2], -1)
        out = F.scaled_dot_product_attention(q.to(v.dtype), keys, values, attn_mask=mask, dropout_p=dropout)
        return out.masked_fill(blind, 0.0)

    def _pooled(self, x: Tensor, pooling: Tensor, key_mask: Tensor | None) -> Tensor:
        """Averages (B, H, S, D) of keys or values (B, H, N, D), float32 at least."""
        with without_autocast(x):
            x = x.to(pooling.dtype)
            return pooling @ (x if key_mask is None else x.masked_fill(~key_mask[:, None, :, None], 0.0))

    def _pooling(self, k: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """P (B or 1, 1, S, N), and (B, 1, 1, S), True at anchors with a real token, or None if all have one."""
        wide = torch.promote_types(k.dtype, torch.float32)
        prefix = min(self.prefix, k.shape[2])
        members = self._members(k.shape[2] - prefix, None if real is None else real[:, prefix:], k.device)
        if prefix:
            own = torch.eye(prefix, dtype=torch.bool, device=k.device).expand(members.shape[0], -1, -1)
            members = torch.cat([F.pad(own, (0, members.shape[2])), F.pad(members, (prefix, 0))], dim=1)
        if real is not None:
            members = members & real[:, None]
        counts = members.sum(-1, keepdim=True)
        pooling = (members.to(wide) / counts.clamp(min=1)).unsqueeze(1)
        return pooling, None if real is None else (counts > 0).mT.unsqueeze(1)

    def _members(self, length: int, real: Tensor | None, device: torch.device) -> Tensor:
        """Which of `length` tokens are in which bin: (B or 1, bins, length)."""
        if length == 0:
            return torch.zeros(1 if real is None else len(real), 0, 0, dtype=torch.bool, device=device)
        if self.grid is None:
            if real is None:
                number = torch.arange(length, device=device)[None]
                count = torch.full((1, 1, 1), length, device=device)
            else:
                number, count = real.cumsum(1) - 1, real.sum(1)[:, None, None]
            levels = [_bins(number, count, size**2) for size in self.sizes]
        else:
            axes = [torch.arange(extent, device=device)[None] for extent in scaled_grid(self.grid, length)]
            levels = [_grid_bins([_bins(axis, axis.shape[1], size) for axis in axes]) for size in self.sizes]
            if real is not None:
                levels = [level.expand(len(real), -1, -1) for level in levels]
        return torch.cat(levels, dim=1)

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        group: HeadGroup | None = None,
    ) -> Tensor:
        pooling, visible = self._pooling(k, key_mask)
        with without_autocast(q):
            logits = (q.to(pooling.dtype) / math.sqrt(self.head_dim)) @ self._pooled(k, pooling, key_mask).mT
            if visible is None:
                return logits.softmax(-1) @ pooling
            blind = ~visible.any(-1, keepdim=True)
            weights = logits.masked_fill(~(visible | blind), -math.inf).softmax(-1)
            return weights.masked_fill(blind, 0.0) @ pooling

    def num_anchors(self) -> int:
        """S, prefix tokens included."""
        dimensions = 2 if self.grid is None else len(self.grid)
        return self.prefix + sum(math.prod([size] * dimensions) for size in self.sizes)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Pooling of keys and values, logits, and weighted values."""
        return 4 * self.num_anchors() * (num_keys + num_queries) * self.head_dim


def _bins(number: Tensor, count: Tensor | int, bins: int) -> Tensor:
    """(B, bins, N): whether bin r has token number t, floor(r n / bins) <= t < ceil((r + 1) n / bins), of n."""
    r = torch.arange(bins, device=number.device)[:, None]
    first, after = r * count // bins, -((r + 1) * -count // bins)
    t = number[:, None]
    return (first <= t) & (t < after)


def _grid_bins(axes: list[Tensor]) -> Tensor:
    """(1, bins, tokens) of a grid from those of its axes."""
    found = axes[0]
    for axis in axes[1:]:
        found = (found[:, :, None, :, None] & axis[:, None, :, None, :]).flatten(3).flatten(1, 2)
    return found
