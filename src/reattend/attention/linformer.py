"""Linformer: softmax attention to a fixed number of projected keys and values."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, check_mask

Sharing = Literal["none", "headwise", "key_value", "layerwise"]


class LengthProjection(nn.Module):
    """E and F, the matrices that map the positions of a sequence to rows.

    `weight` has shape (P, G, R, N): P is 2 for E and F or 1 where they are one, G the number of heads or 1 where heads
    share them. It starts Gaussian as in the paper's Theorem 2, with variance 1 / N, so that the projections of
    independent keys have the variance of a key.
    """

    def __init__(self, spec: MixerSpec, num_rows: int, sharing: Sharing) -> None:
        super().__init__()
        parts = 2 if sharing in ("none", "headwise") else 1
        heads = spec.num_heads if sharing == "none" else 1
        self.weight = nn.Parameter(torch.randn(parts, heads, num_rows, spec.max_length) / math.sqrt(spec.max_length))


class Linformer(Mixer):
    """Linformer (Wang et al. 2020, arXiv 2006.04768, Eqn 7).

        h_i = softmax(q_i (E K)^T / sqrt(d)) (F V),   E and F of shape (num_rows, max_length)

    Time and memory are linear in length. Padded tokens are zero before the projection. A sequence of N tokens meets
    the first N columns of E and F. Where heads share E, its rows are taken of the tokens, before the linear layers of
    keys and values: E (x W) = (E x) W, which needs keys and values of `num_rows` tokens alone.

    Args:
        spec: the place it is built for.
        num_rows: projected keys and values, however long the sequence; more than tokens save nothing.
        sharing: `none` has an E and an F per head, `headwise` one of each for all heads, `key_value` one for all heads
            that is E and F, `layerwise` that one for all layers of the backbone (section 4). Layers share it when a
            `MixerFactory` builds them.
        dropout: probability of dropping an attention weight in training.
        bias: whether the linear layers have biases.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    def __init__(
        self,
        spec: MixerSpec,
        *,
        num_rows: int = 256,
        sharing: Sharing = "headwise",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.refuse_problems(spec, num_rows=num_rows, sharing=sharing, dropout=dropout, bias=bias)
        self.spec = spec
        self.num_rows = num_rows
        self.sharing = sharing
        self.dropout = dropout
        self.qkv = nn.Linear(spec.dim, 3 * spec.dim, bias=bias)
        self.rows = LengthProjection(spec, num_rows, sharing)
        self.proj = nn.Linear(spec.dim, spec.dim, bias=bias)
        nn.init.xavier_uniform_(self.qkv.weight)
        if bias:
            nn.init.zeros_(self.qkv.bias)
            nn.init.zeros_(self.proj.bias)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            time_exponent=1.0,
            reasons={
                "causal": "each projected key mixes tokens of the future",
                "context": "the columns of E and F are the positions of the layer's own sequence",
                "attention_map": "softmax(q (E K)^T) F, which the values meet, may be negative and sums to no constant",
            },
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = []
        num_rows, dropout = options.get("num_rows", 256), options.get("dropout", 0.0)
        if num_rows < 1:
            found.append(f"num_rows={num_rows} must be at least 1")
        if not 0 <= dropout < 1:
            found.append(f"dropout={dropout} must be at least 0 and below 1")
        return super().problems(spec, **options) + found

    @classmethod
    def shared(cls, spec: MixerSpec, **options: Any) -> nn.Module | None:
        """The one E of all layers with `sharing="layerwise"`."""
        if options.get("sharing") != "layerwise":
            return None
        return LengthProjection(spec, options.get("num_rows", 256), "layerwise")

    def use_shared(self, module: nn.Module) -> None:
        assert isinstance(module, LengthProjection)
        self.rows = module

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Attends from `x` (B, N, D) to `num_rows` projections of its tokens; a sample without a real token gives zero.

        Raises:
            ValueError: for more than `max_length` tokens, a mask that is not bool, or a context.
        """
        self._check(x, padding_mask, context, context_mask)
        q = self._heads(self._linear(x, 0, 1))
        k, v = self._keys_values(x, padding_mask)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        y: Tensor = self.proj(out.transpose(1, 2).flatten(2))
        return y if padding_mask is None else y.masked_fill(~padding_mask.any(1)[:, None, None], 0.0)

    def _keys_values(self, x: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """E K and F V, (B, H, R, d)."""
        tokens = x if self.sharing != "none" else self._linear(x, 1, 3)
        if padding_mask is not None:
            tokens = tokens.masked_fill(~padding_mask[:, :, None], 0.0)
        weight = self.rows.weight[..., : x.shape[1]]
        if self.sharing == "none":
            # All samples in one product for each matrix: (2 H, B d, N) with (2 H, N, R).
            columns = tokens.unflatten(2, (2 * self.spec.num_heads, -1)).permute(2, 0, 3, 1).flatten(1, 2)
            rows = (columns @ weight.flatten(0, 1).mT).unflatten(1, (len(x), -1))
            k, v = rows.unflatten(0, (2, -1)).permute(0, 2, 1, 4, 3)
            return k, v
        # Likewise (B D, N) with (N, P R).
        rows = F.linear(tokens.mT.flatten(0, 1), weight.flatten(0, 2)).view(len(x), -1, len(weight), self.num_rows)
        for_keys, for_values = (rows[:, :, part].mT for part in (0, -1))
        keys, values = self._linear(for_keys, 1, 2, bias=False), self._linear(for_values, 2, 3, bias=False)
        if self.qkv.bias is not None:
            # E (x W + 1 b) = (E x) W + (E 1) b, the ones at real tokens.
            sums = _row_sums(weight[:, 0], padding_mask)
            _, key_bias, value_bias = self.qkv.bias.chunk(3)
            keys, values = keys + sums[0] * key_bias, values + sums[-1] * value_bias
        return self._heads(keys), self._heads(values)

    def _linear(self, x: Tensor, start: int, stop: int, bias: bool = True) -> Tensor:
        """The parts from `start` to `stop` of query, key and value."""
        rows = slice(start * self.spec.dim, stop * self.spec.dim)
        return F.linear(x, self.qkv.weight[rows], self.qkv.bias[rows] if bias and self.qkv.bias is not None else None)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, H, N, d)."""
        heads: Tensor = x.unflatten(2, (self.spec.num_heads, -1))
        return heads.transpose(1, 2)

    def _check(
        self, x: Tensor, padding_mask: Tensor | None, context: Tensor | None, context_mask: Tensor | None
    ) -> None:
        if context is not None or context_mask is not None:
            raise ValueError("Linformer takes no context: the columns of E and F are the positions of its own sequence")
        check_mask(padding_mask)
        if x.shape[1] > self.spec.max_length:
            raise ValueError(
                f"{x.shape[1]} tokens, but E and F of this Linformer have columns for max_length={self.spec.max_length}"
            )

    def flops(self, length: int) -> int:
        """Linear layers, products with E and F and attention on `length` tokens, 2 per multiply-add."""
        dim, rows, parts = self.spec.dim, self.num_rows, len(self.rows.weight)
        linear = 2 * dim**2 * (4 * length if self.sharing == "none" else 2 * length + 2 * rows)
        return linear + 2 * parts * rows * length * dim + 4 * length * rows * dim


def _row_sums(weight: Tensor, mask: Tensor | None) -> Tensor:
    """Sums of the rows of (P, R, N) over the tokens of `mask` (B, N), as (P, B, R, 1), or (P, 1, R, 1) over all."""
    sums = weight.sum(-1)[:, None] if mask is None else mask.to(weight.dtype) @ weight.mT
    return sums.unsqueeze(-1)
