"""Multi-head attention as one module with four slots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, State, check_decodes, check_mask
from reattend.attention.lookup import SlotChoice, option_problems
from reattend.attention.ops.heads import split_heads
from reattend.attention.ops.precision import without_autocast
from reattend.attention.recenter import Recenter
from reattend.attention.scaled_heads import ScaledHeads, take
from reattend.attention.slot_choices import SlotChoices
from reattend.attention.slots import HeadGroup


class MultiHeadAttention(Mixer):
    """Multi-head attention with four slots.

        x -> linear layer -> projection -> scaled heads -> recentre -> kernel -> merge -> output projection

    The slots are the primal-dual paper's own view of attention: projection (section 3.3), training subset of each head
    (Eqn 25), batch normalisation (Eqn 22 and 26), feature map and normaliser (Eqn 2 and 27). Parameters are named as in
    timm: `qkv`, `proj`.

    Args:
        spec: the place it is built for.
        projection: what follows the linear layer of queries and keys; a module of `reattend.attention.projections`.
        scaled_heads: options of `ScaledHeads`, or None: `scales` (a factor per head or for all, None for whole heads),
            `pooling`. Prefix tokens are not pooled; a context has none.
        recenter: options of `Recenter`, or None: `beta`, `learnable`, `std`.
        kernel: a module of `reattend.attention.kernels`. This and `projection` are a name, the import path of a class
            of one's own, or a mapping of either under `name` and the class's options.
        dropout: probability of dropping an attention weight in training.
        bias: whether the linear layers have biases.
        residual: gives x + attention (primal-dual paper, Appendix F, Eqn 33).

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    def __init__(
        self,
        spec: MixerSpec,
        *,
        projection: SlotChoice = "linear",
        scaled_heads: Mapping[str, Any] | None = None,
        recenter: Mapping[str, Any] | None = None,
        kernel: SlotChoice = "softmax",
        dropout: float = 0.0,
        bias: bool = True,
        residual: bool = False,
    ) -> None:
        super().__init__()
        choices = SlotChoices(projection, scaled_heads, recenter, kernel, dropout)
        self.refuse_problems(spec, **vars(choices), bias=bias, residual=residual)
        self.spec = spec
        self.num_heads = spec.num_heads
        self.head_dim = spec.dim // spec.num_heads
        self.dropout = dropout
        self.residual = residual
        self._takes_context = choices.capabilities().context
        self.qkv = nn.Linear(spec.dim, 3 * spec.dim, bias=bias)
        self.projection = choices.build_projection(spec)
        self.scaled_heads = ScaledHeads(spec, **(scaled_heads or {}))
        self.recenter = Recenter(spec, **(recenter or {})) if choices.recenters else None
        self.kernel = choices.build_kernel(spec)
        self.proj = nn.Linear(spec.dim, spec.dim, bias=bias)
        nn.init.xavier_uniform_(self.qkv.weight)
        if bias:
            nn.init.zeros_(self.qkv.bias)
            nn.init.zeros_(self.proj.bias)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        """What the slots can do together.

        Raises:
            ReattendError: for an unknown projection or kernel.
        """
        return SlotChoices.among(options).capabilities()

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        choices = SlotChoices.among(options)
        unfit = option_problems("multi-head attention", cls, options) or choices.option_problems()
        return unfit or super().problems(spec, **options) + choices.problems(spec)

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Attends from `x` (B, N, D) to `x`, or to `context` (B, M, D).

        A sample without a real key gives zero, or `x` with `residual`.

        Raises:
            ValueError: for a mask that is not bool, a `context_mask` without a context, or a context when causal.
        """
        self._check(padding_mask, context, context_mask)
        key_mask = padding_mask if context is None else context_mask
        q, k, v = self._queries_keys_values(x, context, padding_mask, key_mask)
        q, k = self.projection(q, k, padding_mask, key_mask)
        prefix = self.spec.prefix_tokens if context is None else 0
        y = self._merge(self._attend(q, k, v, padding_mask, key_mask, prefix), v.dtype)
        if key_mask is not None:
            y = y.masked_fill(~key_mask.any(1)[:, None, None], 0.0)
        return x + y if self.residual else y

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None, key_mask: Tensor | None, prefix: int
    ) -> list[Tensor]:
        """Output (B, H_g, N, d) of each group of heads."""
        dropout = self.dropout if self.training else 0.0
        with self._precision(q, v) as dtype:
            groups = self._groups(q, k, v.to(dtype), key_mask, prefix)
            return [
                self.kernel(q, k, v, mask, query_mask=query_mask, dropout=dropout, group=group)
                for group, q, k, v, mask in groups
            ]

    def _groups(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, prefix: int
    ) -> Iterator[tuple[HeadGroup, Tensor, Tensor, Tensor, Tensor | None]]:
        """Queries, keys, values and mask of each group of heads, pooled and recentred."""
        for group in self.scaled_heads.groups:
            q_g, k_g, v_g = (take(x, group.heads, 1) for x in (q, k, v))
            k_g, v_g, mask = self.scaled_heads.pool(k_g, v_g, key_mask, group.scale, prefix)
            if self.recenter is not None:
                q_g, k_g = self.recenter(q_g, k_g, mask, group.heads, self.kernel.shift_invariant)
            yield replace(group, prefix=prefix), q_g, k_g, v_g, mask

    @contextlib.contextmanager
    def _precision(self, q: Tensor, v: Tensor) -> Iterator[torch.dtype]:
        """The type of the values that the kernel works in.

        Keys that only the query's shift is to recentre need logits in float32. So does q / sigma^2, which leaves
        float16's range, and of which bfloat16 keeps no digits where the queries are many sigma from the keys' mean.
        """
        wide = self.recenter is not None and (self.spec.causal or self.recenter.std)
        if wide and v.dtype != q.dtype:
            with without_autocast(q):
                yield q.dtype
        else:
            yield v.dtype

    def _merge(self, outputs: list[Tensor], dtype: torch.dtype) -> Tensor:
        """Outputs of the groups of heads, to the output projection of their concatenation (B, N, D)."""
        if len(outputs) == 1:
            merged = outputs[0].transpose(1, 2)
        else:
            merged = self.scaled_heads.in_order(torch.cat([out.transpose(1, 2) for out in outputs], dim=2), 2)
        y: Tensor = self.proj(merged.flatten(2).to(dtype))
        return y

    def _check(self, padding_mask: Tensor | None, context: Tensor | None, context_mask: Tensor | None) -> None:
        check_mask(padding_mask)
        check_mask(context_mask, "context_mask")
        if context is None and context_mask is not None:
            raise ValueError("context_mask is given without a context")
        if context is not None and not self._takes_context:
            raise ValueError("this attention takes no context: its keys and values come from the tokens themselves")
        if context is not None and self.spec.causal:
            raise ValueError("a causal mixer takes no context: which of its tokens are past is not defined")

    def _queries_keys_values(
        self,
        x: Tensor,
        context: Tensor | None = None,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, N, d), keys and values (B, H, M, d); to be recentred, the first two are float32 at least."""
        for_q, for_k, for_v = self.projection.tokens(x, x if context is None else context, query_mask, key_mask)
        if self.recenter is not None and (torch.is_autocast_enabled(x.device.type) or self.qkv.weight.itemsize < 4):
            wide = torch.promote_types(self.qkv.weight.dtype, torch.float32)
            with without_autocast(x):
                (q,), (k,) = self._linear(for_q, 0, 1, wide), self._linear(for_k, 1, 2, wide)
            (v,) = self._linear(for_v, 2, 3)
        elif for_q is for_k and for_k is for_v:
            q, k, v = self._split(self.qkv(for_q))
        elif for_k is for_v:
            (q,), (k, v) = self._linear(for_q, 0, 1), self._linear(for_k, 1, 3)
        else:
            (q,), (k,), (v,) = (self._linear(t, i, i + 1) for i, t in enumerate((for_q, for_k, for_v)))
        return q, k, v

    def _linear(self, x: Tensor, start: int, stop: int, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
        """The parts from `start` to `stop` of query, key and value, computed in `dtype`."""
        rows = slice(start * self.spec.dim, stop * self.spec.dim)
        weight, bias = self.qkv.weight[rows], None if self.qkv.bias is None else self.qkv.bias[rows]
        if dtype is not None:
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        return self._split(F.linear(x, weight, bias))

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, N, parts * D) to parts of shape (B, H, N, d)."""
        return split_heads(x, self.spec.dim, self.num_heads)

    def initial_state(self, batch_size: int) -> State:
        device, dtype = self.qkv.weight.device, self.qkv.weight.dtype
        state = self.kernel.initial_state(batch_size, device, dtype)
        if self.recenter is not None:
            state |= self.recenter.initial_state(batch_size, self.num_heads, self.head_dim, device)
        return state

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Output (B, D) for the next token (B, D), and the state after it; equals the causal parallel form.

        Raises:
            ValueError: if the mixer is not built causal.
        """
        check_decodes(self.spec)
        q, k, v = self._queries_keys_values(x_t[:, None])
        after: State = {}
        if self.recenter is not None:
            q, after = self.recenter.step(q, k, state)
        with self._precision(q, v) as dtype:
            out, kernel_after = self.kernel.step(q, k, v.to(dtype), state)
        y = self._merge([out], v.dtype)[:, 0]
        return (x_t + y if self.residual else y), after | kernel_after

    def attention_map(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Weights (B, H, N, N) on the values of the tokens of `x`, without dropout; rows of queries with keys sum to 1.

        A scaled head's weight on a window is spread over its tokens as pooling spreads the window's value: evenly over
        the real ones with mean pooling, all on the picked one with striding.
        """
        self._check(padding_mask, None, None)
        q, k, v = self._queries_keys_values(x, None, padding_mask, padding_mask)
        q, k = self.projection(q, k, padding_mask, padding_mask)
        prefix, real = self.spec.prefix_tokens, padding_mask
        if real is None:
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        with self._precision(q, v):
            maps = [
                self.scaled_heads.spread(
                    self.kernel.weights(q, k, mask, query_mask=padding_mask, group=group), real, group.scale, prefix
                )
                for group, q, k, _, mask in self._groups(q, k, v, padding_mask, prefix)
            ]
        return self.scaled_heads.in_order(torch.cat(maps, dim=1), 1)

    def flops(self, length: int) -> int:
        """Linear layers and kernel on `length` tokens, 2 per multiply-add; pooling and recentring are left out."""
        linear = 2 * length * 4 * self.spec.dim**2
        num_keys = [self.scaled_heads.num_windows(length, s, self.spec.prefix_tokens) for s in self.scaled_heads.scales]
        linear += self.projection.flops(length)
        return linear + sum(self.kernel.flops(length, keys) for keys in num_keys)

    def no_weight_decay(self) -> set[str]:
        return {f"recenter.{name}" for name, _ in self.recenter.named_parameters()} if self.recenter else set()
