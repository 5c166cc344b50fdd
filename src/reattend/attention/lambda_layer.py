"""Lambda layer: each query is applied to a linear function that sums up the context, its positions included."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, check_mask
from reattend.attention.ops.convolution import scaled_grid
from reattend.attention.ops.masked_batch_norm import MaskedBatchNorm
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.relative_sums import BLOCK, relative_sums


class LambdaLayer(Mixer):
    """Lambda layer with global context (LambdaNetworks, Bello 2021, arXiv 2102.08602, section 3).

        content:   lambda^c   = sum_m softmax_m(k_m) v_m^T              (K, D / H), the softmax over positions
        position:  lambda^p_n = sum_m e_{m-n} v_m^T                     (K, D / H)
        y_nh = (lambda^c + lambda^p_n)^T q_nh

    Queries q_nh have K features in each of H heads; keys of K and values of D / H features are shared by all heads
    (multi-query lambdas, of intra-depth 1). Queries and values are batch-normalised. e is a learned table of
    (2 n - 1)^2 relative positions on an n x n grid, or as many as there are on a sequence or another grid. There are no
    biases but in the output projection, which follows here and which the parameter counts of AFT's Table 7 show.

    Time is N^2. lambda^p is not formed: (q_nh . e_{m-n}) v_m takes H K + D multiplications for a pair of positions in
    place of K D / H, and neither a query's lambda nor a pair's embedding is stored, so memory is linear in N.

    In training, batch normalisation makes samples depend on each other; its statistics are over real tokens. Prefix
    tokens have no relative position and take part in the content alone, which is a design of our own. A shorter
    sequence or smaller grid uses the middle of the table.

    Args:
        spec: the place it is built for.
        key_dim: K.
        normalised: what is batch-normalised: `query_value` in the paper and in public code, `query_key` as AFT's text
            says of its runs.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    def __init__(
        self,
        spec: MixerSpec,
        *,
        key_dim: int = 16,
        normalised: Literal["query_value", "query_key"] = "query_value",
    ) -> None:
        super().__init__()
        self.refuse_problems(spec, key_dim=key_dim, normalised=normalised)
        self.spec = spec
        self.key_dim = key_dim
        self.normalised = normalised
        self.head_dim = spec.dim // spec.num_heads
        self.extents = spec.grid or (spec.max_length - spec.prefix_tokens,)
        self.widths = [spec.num_heads * key_dim, key_dim, self.head_dim]
        self.qkv = nn.Linear(spec.dim, sum(self.widths), bias=False)
        nn.init.normal_(self.qkv.weight, std=spec.dim**-0.5)
        self.query_norm = MaskedBatchNorm(self.widths[0])
        self.other_norm = MaskedBatchNorm(self.widths[2 if normalised == "query_value" else 1])
        self.table = nn.Parameter(torch.randn(*(2 * extent - 1 for extent in self.extents), key_dim))
        self.proj = nn.Linear(spec.dim, spec.dim)
        nn.init.zeros_(self.proj.bias)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            reasons={
                "causal": "batch normalisation in training averages over tokens of the future",
                "context": "positions of a context's tokens relative to the queries are not known",
                "decoding": "it is not causal",
                "attention_map": "its weights on values may be negative and have no normaliser",
                "batch": "batch normalisation in training averages over all samples; in evaluation it does not",
            },
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = super().problems(spec, **options)
        if options.get("key_dim", 1) < 1:
            found.append(f"key_dim={options['key_dim']} must be at least 1")
        if spec.grid is None and spec.max_length <= spec.prefix_tokens:
            found.append(f"max_length={spec.max_length} leaves no token beside {spec.prefix_tokens} prefix tokens")
        return found

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Applies the lambdas of `x` (B, N, D) to its queries; a sample without a real token gives zero.

        Raises:
            ValueError: for more tokens than the table has positions for, tokens that do not fit the grid at any scale,
                a mask that is not bool, or a context.
        """
        if context is not None or context_mask is not None:
            raise ValueError(f"this layer takes no context: {self.capabilities().reasons['context']}")
        check_mask(padding_mask)
        q, k, v = self.qkv(x).split(self.widths, -1)
        q = self.query_norm(q, padding_mask)
        if self.normalised == "query_value":
            v = self.other_norm(v, padding_mask)
        else:
            k = self.other_norm(k, padding_mask)
        k = k.to(torch.promote_types(k.dtype, torch.float32))
        if padding_mask is not None:
            padding = ~padding_mask[..., None]
            k, v = k.masked_fill(padding, torch.finfo(k.dtype).min / 4), v.masked_fill(padding, 0.0)
        q = q.unflatten(2, (self.spec.num_heads, -1)).transpose(1, 2)
        out = self._content(q, k, v) + self._position(q, v)
        y: Tensor = self.proj(out.transpose(1, 2).flatten(2))
        return y if padding_mask is None else y.masked_fill(~padding_mask.any(1)[:, None, None], 0.0)

    @staticmethod
    def _content(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, H, N, D / H) from queries (B, H, N, K), keys (B, N, K) and values (B, N, D / H)."""
        return q @ (k.softmax(1).to(v.dtype).mT @ v).unsqueeze(1)

    def _position(self, q: Tensor, v: Tensor) -> Tensor:
        """Likewise, zero for prefix tokens."""
        prefix = min(self.spec.prefix_tokens, v.shape[1])
        extents = self._extents(v.shape[1] - prefix)
        if not extents:
            return torch.zeros_like(q[..., :1])
        table = self.table.to(v.dtype)
        for axis, (extent, most) in enumerate(zip(extents, self.extents, strict=True)):
            table = table.narrow(axis, most - extent, 2 * extent - 1)
        with without_autocast(v):
            y = relative_sums(q[:, :, prefix:].contiguous(), table.contiguous(), v[:, prefix:].contiguous(), extents)
        return nn.functional.pad(y, (0, 0, prefix, 0)) if prefix else y

    def _extents(self, length: int) -> tuple[int, ...]:
        """The grid of `length` tokens; empty for none."""
        if length == 0:
            return ()
        extents = (length,) if self.spec.grid is None else scaled_grid(self.spec.grid, length)
        if any(extent > most for extent, most in zip(extents, self.extents, strict=True)):
            raise ValueError(f"relative positions are learned for {self.extents} tokens at most, not for {extents}")
        return extents

    def flops(self, length: int) -> int:
        """Linear layers, content, and positions, whose products with the table are counted as they are computed."""
        spec, tokens = self.spec, length - self.spec.prefix_tokens
        linear = 2 * length * spec.dim * (sum(self.widths) + spec.dim)
        content = 2 * length * self.key_dim * self.head_dim * (1 + spec.num_heads)
        width = self.extents[-1] if spec.grid else tokens
        products = tokens + tokens // width * (min(width, BLOCK) - 1)
        position = 2 * tokens * spec.num_heads * (self.key_dim * products + self.head_dim * tokens)
        return linear + content + position
