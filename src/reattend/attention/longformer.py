"""Longformer: softmax attention to a window of tokens and to a few global tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, State, check_decodes, check_mask
from reattend.attention.ops.attend_with_lse import attend_with_lse, merge
from reattend.attention.ops.blocks import SMALLEST_BLOCK, attend_near
from reattend.attention.ops.heads import split_heads
from reattend.attention.ops.precision import without_autocast


class Longformer(Mixer):
    """Sliding-window attention with global tokens (Longformer, Beltagy et al. 2020, section 3.1).

        token i:  softmax of q_i . k_j / sqrt(D) over |i - j| <= floor(w / 2) and the global j, applied to v_j
        global i: softmax of q^g_i . k^g_j / sqrt(D) over all j, applied to v^g_j

    with projections of their own, q^g k^g v^g, for what global tokens see. The causal form has no global tokens, and
    token i sees the last w tokens, itself included. Time and memory are O(N w); decoding keeps w keys and values.

    Parameters are `qkv`, `qkv_global` and `proj`; `qkv_global` starts as a copy of `qkv`, as in the paper.

    Args:
        spec: the place it is built for.
        window: w, in tokens; None for the power of two that is nearest to the square root of `spec.max_length`, and
            twice that when not causal.
        num_global: number of leading tokens, prefix tokens among them, that are global; None for one, or all prefix
            tokens, and none when causal.
        bias: whether the linear layers have biases.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    def __init__(
        self, spec: MixerSpec, *, window: int | None = None, num_global: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.refuse_problems(spec, window=window, num_global=num_global, bias=bias)
        self.spec = spec
        self.num_heads = spec.num_heads
        self.head_dim = spec.dim // spec.num_heads
        if window is None:
            window = (1 if spec.causal else 2) << math.floor(math.log2(spec.max_length) / 2 + 0.5)
        self.window = window
        self.before = window - 1 if spec.causal else window // 2
        self.after = 0 if spec.causal else window // 2
        if num_global is None:
            num_global = 0 if spec.causal else max(1, spec.prefix_tokens)
        self.num_global = num_global
        self.qkv = nn.Linear(spec.dim, 3 * spec.dim, bias=bias)
        self.qkv_global = nn.Linear(spec.dim, 3 * spec.dim, bias=bias) if num_global else None
        self.proj = nn.Linear(spec.dim, spec.dim, bias=bias)
        nn.init.xavier_uniform_(self.qkv.weight)
        if bias:
            nn.init.zeros_(self.qkv.bias)
            nn.init.zeros_(self.proj.bias)
        if self.qkv_global is not None:
            self.qkv_global.load_state_dict(self.qkv.state_dict())

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        reasons = {"context": "a window is around the query's own place in the sequence, which a context does not have"}
        causal = not options.get("num_global")
        if not causal:
            reasons["causal"] = "global tokens see the whole sequence: set num_global=0"
            reasons["decoding"] = reasons["causal"]
        return Capabilities(
            causal=causal,
            decoding=causal,
            constant_state=causal,
            attention_map=True,
            time_exponent=1.0,
            reasons=reasons,
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = super().problems(spec, **options)
        window, num_global = options.get("window"), options.get("num_global")
        if window is not None and window < 1:
            found.append(f"window={window} must be at least 1")
        if num_global is not None and num_global < 0:
            found.append(f"num_global={num_global} must not be negative")
        return found

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Attends from `x` (B, N, D) to itself; a sample without a real token gives zero.

        Raises:
            ValueError: for a mask that is not bool, or a context.
        """
        self._check(padding_mask, context, context_mask)
        first = min(self.num_global, x.shape[1])
        q, k, v = self._heads(self.qkv, x, 0, 3)
        outs = []
        if self.qkv_global is not None:
            mask = None if padding_mask is None else padding_mask[:, None, None]
            (q_global,) = self._heads(self.qkv_global, x[:, :first], 0, 1)
            k_global, v_global = self._heads(self.qkv_global, x, 1, 3)
            outs.append(attend_with_lse(q_global, k_global, v_global, mask)[0])
        if first < x.shape[1]:
            real = None if padding_mask is None else padding_mask[:, first:]
            body = slice(first, None)
            parts = [
                attend_near(
                    q[:, :, body],
                    k[:, :, body],
                    v[:, :, body],
                    self._visible,
                    block=max(self.before, SMALLEST_BLOCK),
                    before=self.before,
                    after=self.after,
                    real=real,
                )
            ]
            if first:
                mask = None if padding_mask is None else padding_mask[:, None, None, :first]
                parts.append(attend_with_lse(q[:, :, body], k[:, :, :first], v[:, :, :first], mask))
            outs.append(merge(*zip(*parts, strict=True))[0])
        y = self._merge(torch.cat(outs, dim=2) if len(outs) > 1 else outs[0])
        return y if padding_mask is None else y.masked_fill(~padding_mask.any(1)[:, None, None], 0.0)

    def _check(self, padding_mask: Tensor | None, context: Tensor | None, context_mask: Tensor | None) -> None:
        check_mask(padding_mask)
        if context is not None or context_mask is not None:
            raise ValueError(f"Longformer takes no context: {self.capabilities().reasons['context']}")

    def _visible(self, i: Tensor, j: Tensor, real: Tensor) -> Tensor:
        """Whether query i sees the real token j."""
        return (self._in_window(i, j) & real).squeeze(-1)

    def _in_window(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j <= self.before) & (j - i <= self.after)

    def _heads(self, layer: nn.Linear, x: Tensor, start: int, stop: int) -> tuple[Tensor, ...]:
        """The parts (B, H, N, d) from `start` to `stop` of query, key and value."""
        rows = slice(start * self.spec.dim, stop * self.spec.dim)
        y = F.linear(x, layer.weight[rows], None if layer.bias is None else layer.bias[rows])
        return split_heads(y, self.spec.dim, self.num_heads)

    def _merge(self, out: Tensor) -> Tensor:
        y: Tensor = self.proj(out.transpose(1, 2).flatten(2))
        return y

    def initial_state(self, batch_size: int) -> State:
        weight = self.qkv.weight
        empty = weight.new_zeros(batch_size, self.num_heads, self.window, self.head_dim)
        real = torch.zeros(batch_size, self.window, dtype=torch.bool, device=weight.device)
        return {"keys": empty, "values": empty, "real": real}

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Output (B, D) for the next token (B, D), and the state after it; equals the causal parallel form.

        Raises:
            ValueError: if the mixer is not built causal.
        """
        check_decodes(self.spec)
        q, k, v = self._heads(self.qkv, x_t[:, None], 0, 3)
        keys = torch.cat([state["keys"][:, :, 1:], k], dim=2)
        values = torch.cat([state["values"][:, :, 1:], v], dim=2)
        real = torch.cat([state["real"][:, 1:], state["real"].new_ones(len(x_t), 1)], dim=1)
        out, _ = attend_with_lse(q.to(values.dtype), keys.to(values.dtype), values, real[:, None, None])
        return self._merge(out.to(v.dtype))[:, 0], {"keys": keys, "values": values, "real": real}

    def attention_map(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Weights (B, H, N, N); those of global tokens are on their own values v^g."""
        self._check(padding_mask, None, None)
        length = x.shape[1]
        first = min(self.num_global, length)
        position = torch.arange(length, device=x.device)
        seen = self._in_window(position[:, None], position) | (position < first)
        seen = seen | (position < first)[:, None]
        seen = seen[None, None] if padding_mask is None else seen & padding_mask[:, None, None]
        layers = [(self.qkv, slice(first, None))]
        if self.qkv_global is not None:
            layers.insert(0, (self.qkv_global, slice(first)))
        logits = []
        for layer, rows in layers:
            q, k = self._heads(layer, x, 0, 2)
            wide = torch.promote_types(q.dtype, torch.float32)
            with without_autocast(x):
                logits.append((q[:, :, rows].to(wide) / math.sqrt(self.head_dim)) @ k.to(wide).mT)
        blind = ~seen.any(-1, keepdim=True)
        weights = torch.cat(logits, dim=2).masked_fill(~(seen | blind), -math.inf).softmax(-1)
        return weights.masked_fill(blind, 0.0)

    def flops(self, length: int) -> int:
        """Linear layers, windows and global tokens, 2 per multiply-add; a window is counted whole at the ends too."""
        first = min(self.num_global, length)
        linear = 4 * length + (2 * length + first if self.num_global else 0)
        seen = min(length, 1 + self.before + self.after + first)
        return 2 * linear * self.spec.dim**2 + 4 * self.spec.dim * ((length - first) * seen + first * length)
