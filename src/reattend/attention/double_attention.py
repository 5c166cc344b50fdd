"""Double attention: features are gathered from all positions and distributed to each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, State, check_decodes, check_mask
from reattend.attention.kernels.efficient import EfficientKernel


class DoubleAttention(Mixer):
    """Double attention (A^2-Nets, Chen et al. 2018, arXiv 1810.11579, section 3).

        gather:      g_c = sum_j softmax_j(b_jc) a_j           one descriptor of M features for each of C maps
        distribute:  h_i = sum_c softmax_c(v_i)_c g_c
        y_i = W h_i

    with a_i, b_i, v_i linear in x_i, of M, C and C features. Time and memory are linear in length.

    The maps are `efficient` attention with b for keys, v for queries and a for values, but for the shape: one head over
    the whole layer, whose numbers of maps and of gathered features are free, and smaller than D, where `efficient` has
    heads with as many of either as the head has features. The number of heads is not used. Some public code normalises
    v_i over positions; here it is over the C maps, so that y_i averages the gathered features.

    The causal form is a design of our own: softmax_j is over the positions seen so far, map by map. Decoding keeps the
    descriptors. The paper's residual, and convolutions over more than one token, are left to the backbone.

    Args:
        spec: the place it is built for.
        num_features: M, the width of a descriptor; None for a quarter of D.
        num_maps: C; None for a quarter of D.
        bias: whether the linear layers have biases.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    def __init__(
        self, spec: MixerSpec, *, num_features: int | None = None, num_maps: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.refuse_problems(spec, num_features=num_features, num_maps=num_maps, bias=bias)
        self.spec = spec
        self.num_features = num_features or max(1, spec.dim // 4)
        self.num_maps = num_maps or max(1, spec.dim // 4)
        self.gather = nn.Linear(spec.dim, self.num_features + self.num_maps, bias=bias)
        self.distribute = nn.Linear(spec.dim, self.num_maps, bias=bias)
        self.proj = nn.Linear(self.num_features, spec.dim, bias=bias)
        self.kernel = EfficientKernel(replace(spec, dim=self.num_maps, num_heads=1))
        for layer in (self.gather, self.distribute):
            nn.init.xavier_uniform_(layer.weight)
        if bias:
            for layer in (self.gather, self.distribute, self.proj):
                nn.init.zeros_(layer.bias)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return EfficientKernel.capabilities()

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = super().problems(spec, **options)
        for name in ("num_features", "num_maps"):
            value = options.get(name)
            if value is not None and value < 1:
                found.append(f"{name}={value} must be at least 1")
        return found

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Gathers from `x` (B, N, D), or from `context` (B, M, D); a sample without a real token there gives zero.

        Raises:
            ValueError: for a mask that is not bool, a `context_mask` without a context, or a context when causal.
        """
        self._check(padding_mask, context, context_mask)
        mask = padding_mask if context is None else context_mask
        features, maps = self._gathered(x if context is None else context)
        out = self.kernel(self.distribute(x)[:, None], maps, features, mask)[:, 0]
        y: Tensor = self.proj(out)
        return y if mask is None else y.masked_fill(~mask.any(1)[:, None, None], 0.0)

    def _check(self, padding_mask: Tensor | None, context: Tensor | None, context_mask: Tensor | None) -> None:
        check_mask(padding_mask)
        check_mask(context_mask, "context_mask")
        if context is None and context_mask is not None:
            raise ValueError("context_mask is given without a context")
        if context is not None and self.spec.causal:
            raise ValueError("a causal mixer takes no context: which of its tokens are past is not defined")

    def _gathered(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """a (B, 1, N, M) and b (B, 1, N, C)."""
        features, maps = self.gather(x)[:, None].split([self.num_features, self.num_maps], -1)
        return features, maps

    def initial_state(self, batch_size: int) -> State:
        weight = self.distribute.weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        shape = (batch_size, 1, self.num_maps, self.num_features)
        return {
            "averages": torch.zeros(shape, device=weight.device, dtype=wide),
            "log_sums": torch.full((batch_size, 1, 1, self.num_maps), -torch.inf, device=weight.device, dtype=wide),
        }

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Output (B, D) for the next token (B, D), and the state after it; equals the causal parallel form.

        Raises:
            ValueError: if the mixer is not built causal.
        """
        check_decodes(self.spec)
        features, maps = self._gathered(x_t[:, None])
        out, state = self.kernel.step(self.distribute(x_t)[:, None, None], maps, features, state)
        y: Tensor = self.proj(out[:, 0, 0])
        return y, state

    def attention_map(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Weights (B, H, N, N) on a_j, the same for all heads, of which there is one; rows sum to 1."""
        self._check(padding_mask, None, None)
        _, maps = self._gathered(x)
        weights = self.kernel.weights(self.distribute(x)[:, None], maps, padding_mask)
        return weights.expand(-1, self.spec.num_heads, -1, -1)

    def flops(self, length: int) -> int:
        """Linear layers, and gathering and distributing; the causal form as its recurrence."""
        linear = 2 * length * self.spec.dim * 2 * (self.num_features + self.num_maps)
        return linear + 4 * length * self.num_features * self.num_maps
