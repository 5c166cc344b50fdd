"""Synthesizer: softmax attention whose logits come from the query's token alone, or from no token."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, State, check_decodes, check_mask
from reattend.attention.kernels.softmax import SoftmaxKernel
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.tiled_softmax import tiled_logits, tiled_softmax
from reattend.attention.ops.weighted_average import weighted_average

Logits = Literal["dense", "random", "factorised_dense", "factorised_random"]

RANK = 8

# Which forms have an option.
FORMS = {
    "hidden_dim": ("dense", "factorised_dense"),
    "tile": ("factorised_dense",),
    "rank": ("factorised_random",),
}


class Synthesizer(Mixer):
    """Attention with synthetic logits (Synthesizer, Tay et al. 2020, arXiv 2005.00743, section 3).

        h_i = sum_j softmax_j(s_ij) v_j   in each head, with

        dense:             s_i = W_2 relu(W_1 x_i)                           one logit for each of T positions
        random:            s = R, a learned (T, T) matrix
        factorised_dense:  s_ij = a_i[j // F] b_i[j mod F]                   a_i, b_i of E and F, E F at least T,
                           a_i = W_a relu(W_1 x_i), b_i = W_b relu(W_1 x_i)
        factorised_random: s = R_1 R_2^T, R_1 and R_2 of shape (T, K)

    with T = `spec.max_length`, biases in all linear layers, and j <= i when causal. A shorter sequence meets the first
    columns. There is no factor 1 / sqrt(D). Time is N^2 for all; memory is N^2 in the learned matrix of `random` and
    once more in work that does not grow with the batch for both random forms, and linear for both dense ones, which
    form no N x N matrix for a sample. Decoding keeps all values.

    The paper tiles a_i and b_i to T entries each and multiplies them; the tiling here repeats a_i entry by entry and
    b_i as a whole, so that each pair meets once. Initial values are not stated there: W_2, W_a, W_b are normal of
    variance 1 over their inputs, and R and R_1 R_2^T have entries of variance 1.

    Args:
        spec: the place it is built for.
        logits: which of the four.
        hidden_dim: width per head of relu(W_1 x), of the dense forms alone; None for the head's width.
        tile: F, of `factorised_dense` alone; None for the root of T, rounded up.
        rank: K, of `factorised_random` alone; None for 8, the paper's.
        bias: whether the linear layers of values and output have biases.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    def __init__(
        self,
        spec: MixerSpec,
        *,
        logits: Logits = "dense",
        hidden_dim: int | None = None,
        tile: int | None = None,
        rank: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.refuse_problems(spec, logits=logits, hidden_dim=hidden_dim, tile=tile, rank=rank, bias=bias)
        self.spec = spec
        self.logits = logits
        heads, length, self.head_dim = spec.num_heads, spec.max_length, spec.dim // spec.num_heads
        self.v = nn.Linear(spec.dim, spec.dim, bias=bias)
        self.proj = nn.Linear(spec.dim, spec.dim, bias=bias)
        nn.init.xavier_uniform_(self.v.weight)
        if bias:
            nn.init.zeros_(self.v.bias)
            nn.init.zeros_(self.proj.bias)
        if logits == "random":
            self.table = nn.Parameter(torch.randn(heads, length, length))
        elif logits == "factorised_random":
            rank = rank or RANK
            self.rows, self.columns = (nn.Parameter(torch.randn(heads, length, rank) * rank**-0.25) for _ in range(2))
        else:
            self.hidden_dim = hidden_dim or self.head_dim
            self.hidden = nn.Linear(spec.dim, heads * self.hidden_dim)
            nn.init.xavier_uniform_(self.hidden.weight)
            nn.init.zeros_(self.hidden.bias)
        if logits == "dense":
            self.columns, self.columns_bias = self._layer(length)
            # A feature more for the bias; queries, keys and values of one width are what fused attention wants.
            self.width = max(self.hidden_dim + 1, self.head_dim)
            self.kernel = SoftmaxKernel(replace(spec, dim=heads * self.width))
        elif logits == "factorised_dense":
            self.tile = tile or math.isqrt(length - 1) + 1
            self.tiles, self.tiles_bias = self._layer(-(-length // self.tile))
            self.within, self.within_bias = self._layer(self.tile)

    def _layer(self, size: int) -> tuple[nn.Parameter, nn.Parameter]:
        """Weight (H, size, hidden) and bias (H, size)."""
        weight = torch.randn(self.spec.num_heads, size, self.hidden_dim) / math.sqrt(self.hidden_dim)
        return nn.Parameter(weight), nn.Parameter(torch.zeros(self.spec.num_heads, size))

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            causal=True,
            decoding=True,
            attention_map=True,
            reasons={
                "context": "its logits are learned for the positions of the layer's own sequence",
                "constant_state": "each token averages all values so far with weights of its own",
            },
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = super().problems(spec, **options)
        logits = options.get("logits", "dense")
        for name, forms in FORMS.items():
            value = options.get(name)
            if value is not None and value < 1:
                found.append(f"{name}={value} must be at least 1")
            if value is not None and logits not in forms:
                found.append(f"{name} has no effect with logits={logits}; it is of logits={' and '.join(forms)}")
        return found

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Averages the values of `x` (B, N, D); a sample without a real token gives zero.

        Raises:
            ValueError: for more than `max_length` tokens, a mask that is not bool, or a context.
        """
        self._check(x, padding_mask, context, context_mask)
        v = self._heads(self.v(x))
        attend = self._dense if self.logits == "dense" else self._written_out
        y: Tensor = self.proj(attend(x, v, padding_mask).transpose(1, 2).flatten(2))
        return y if padding_mask is None else y.masked_fill(~padding_mask.any(1)[:, None, None], 0.0)

    def _check(
        self, x: Tensor, padding_mask: Tensor | None, context: Tensor | None, context_mask: Tensor | None
    ) -> None:
        if x.shape[1] > self.spec.max_length:
            raise ValueError(f"{x.shape[1]} tokens, but logits are learned for {self.spec.max_length} at most")
        check_mask(padding_mask)
        if context is not None or context_mask is not None:
            raise ValueError(f"this attention takes no context: {self.capabilities().reasons['context']}")

    def _dense(self, x: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        """Fused attention of queries [relu(W_1 x), 1] to learned keys [W_2, its bias]."""
        q = self._heads(self.hidden(x).relu())
        k = torch.cat([self.columns, self.columns_bias[..., None]], dim=2)[:, : x.shape[1]]
        extra = self.width - self.hidden_dim - 1
        q = F.pad(F.pad(q, (0, 1), value=1.0), (0, extra)) * math.sqrt(self.width)
        k = F.pad(k, (0, extra)).expand(len(x), -1, -1, -1)
        out: Tensor = self.kernel(q, k, F.pad(v, (0, self.width - self.head_dim)), real)
        return out[..., : self.head_dim]

    def _written_out(self, x: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        """The other forms, in float32 at least."""
        with without_autocast(x):
            value = v.to(torch.promote_types(v.dtype, torch.float32))
            if self.logits == "factorised_dense":
                out = tiled_softmax(*self._factors(x, value.dtype), value, real, self.spec.causal)
            else:
                out = self._random(value, real)
        return out.to(v.dtype)

    def _random(self, v: Tensor, real: Tensor | None) -> Tensor:
        """The same weights for all samples, but for padding: samples are columns of one product per head."""
        batch, heads, length, _ = v.shape
        logits = self._table(slice(length), length, v.dtype)
        if self.spec.causal:
            future = torch.ones(length, length, dtype=torch.bool, device=v.device).triu(1)
            logits = logits.masked_fill(future, -math.inf)
        keys = v.new_zeros(heads, length, 1)
        if real is not None:
            keys = v.new_zeros(length, batch).masked_fill(~real.mT, -math.inf).expand(heads, -1, -1)
            v = v.masked_fill(~real[:, None, :, None], 0.0)
        out = weighted_average(logits.contiguous(), keys.contiguous(), v.permute(1, 2, 0, 3).flatten(2))[0]
        samples: Tensor = out.unflatten(2, (batch, -1))
        return samples.permute(2, 0, 1, 3)

    def _table(self, rows: slice, num_keys: int, dtype: torch.dtype) -> Tensor:
        """Logits (H, rows, M) of the random forms."""
        if self.logits == "random":
            table: Tensor = self.table
            return table[:, rows, :num_keys].to(dtype)
        return self.rows[:, rows].to(dtype) @ self.columns[:, :num_keys].to(dtype).mT

    def _factors(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """a (B, H, N, E) and b (B, H, N, F)."""
        layer = self.hidden
        hidden = self._heads(F.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype)).relu())
        a = hidden @ self.tiles.to(dtype).mT + self.tiles_bias.to(dtype)[:, None]
        return a, hidden @ self.within.to(dtype).mT + self.within_bias.to(dtype)[:, None]

    def _row(self, x: Tensor, rows: slice, num_keys: int) -> Tensor:
        """Logits (B or 1, H, rows, M) of tokens `x` that stand at `rows`, float32 at least."""
        wide = torch.promote_types(self.v.weight.dtype, torch.float32)
        with without_autocast(x):
            if self.logits == "dense":
                hidden = self._heads(self.hidden(x.to(self.hidden.weight.dtype)).relu()).to(wide)
                columns, bias = (p[:, :num_keys].to(wide) for p in (self.columns, self.columns_bias))
                return hidden @ columns.mT + bias[:, None]
            if self.logits == "factorised_dense":
                return tiled_logits(*self._factors(x, wide), num_keys)
            return self._table(rows, num_keys, wide)[None]

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, H d) to (B, H, N, d)."""
        heads: Tensor = x.unflatten(2, (self.spec.num_heads, -1))
        return heads.transpose(1, 2)

    def initial_state(self, batch_size: int) -> State:
        return {"values": self.v.weight.new_zeros(batch_size, self.spec.num_heads, 0, self.head_dim)}

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Output (B, D) for the next token (B, D), and the state after it; equals the causal parallel form.

        Raises:
            ValueError: if the mixer is not built causal, or after `max_length` tokens.
        """
        check_decodes(self.spec)
        values = torch.cat([state["values"], self._heads(self.v(x_t[:, None]))], dim=2)
        length = values.shape[2]
        if length > self.spec.max_length:
            raise ValueError(f"token {length}, but logits are learned for {self.spec.max_length} at most")
        weights = self._row(x_t[:, None], slice(length - 1, length), length).softmax(-1)
        out = weights.to(values.dtype) @ values
        y: Tensor = self.proj(out.transpose(1, 2).flatten(2))[:, 0]
        return y, {"values": values}

    def attention_map(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Weights (B, H, N, N); rows of queries that see a real token sum to 1."""
        self._check(x, padding_mask, None, None)
        length = x.shape[1]
        visible = torch.ones(length, length, dtype=torch.bool, device=x.device)
        visible = (visible.tril() if self.spec.causal else visible)[None, None]
        if padding_mask is not None:
            visible = visible & padding_mask[:, None, None]
        blind = ~visible.any(-1, keepdim=True)
        logits = self._row(x, slice(length), length).expand(len(x), -1, -1, -1)
        return logits.masked_fill(~(visible | blind), -math.inf).softmax(-1).masked_fill(blind, 0.0)

    def flops(self, length: int) -> int:
        """Linear layers, logits and weighted values, 2 per multiply-add; the causal form is counted whole."""
        dim, heads = self.spec.dim, self.spec.num_heads
        total = 4 * length * dim**2 + 2 * length**2 * dim
        if self.logits == "factorised_random":
            total += 2 * length**2 * heads * self.rows.shape[2]
        elif self.logits != "random":
            per_token = self.hidden_dim * (length if self.logits == "dense" else self.tile + self.tiles.shape[1])
            total += 2 * length * heads * (dim * self.hidden_dim + per_token)
        return total
