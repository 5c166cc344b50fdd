"""Queries and keys convolved over the grid with one kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from reattend.attention.contract import Capabilities, MixerSpec
from reattend.attention.ops.convolution import convolve, identity_kernels
from reattend.attention.slots import EVERYTHING, Projection


class Conv2dProjection(Projection):
    """h_i = sum_j softmax_j(Conv2D(Q, s)_i . Conv2D(K, s)_j / sqrt(D)) v_j (primal-dual paper, Appendix G, Def 3).

    Conv2D(X, s)(a, b) = sum_{o, p = 0}^{s-1} w_op X(a + o - floor((s - 1) / 2), b + p - floor((s - 1) / 2)) with X the
    queries or keys reshaped to the grid: one kernel w for queries and keys, and for all heads and channels; it follows
    the linear layer, and values are not convolved. Outside the grid, which for even s is to the right and below, and at
    padding, are zeros. Prefix tokens are neither convolved nor seen by others. w starts as the identity plus small
    noise. The paper leaves all this but the shared kernel open.

    Other than `spec.grid` it takes grids of the same aspect ratio. It takes no context, whose grid it is not told.

    Args:
        spec: the place it is built for; its grid has two extents.
        kernel_size: s; 2 in the paper.
    """

    def __init__(self, spec: MixerSpec, *, kernel_size: int = 2) -> None:
        super().__init__(spec)
        self.prefix_tokens = spec.prefix_tokens
        self.grid = spec.grid
        self.weight = nn.Parameter(identity_kernels(kernel_size, kernel_size, dimensions=2))

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        reasons = {
            "causal": "a convolved key holds tokens of the future",
            "context": "the grid of a context is not known",
            "variable_length": "the tokens must fill a grid",
        }
        no = {name: False for name in ("causal", "context", "decoding", "variable_length")}
        return replace(EVERYTHING, **no, needs_grid=True, reasons=reasons)

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        size = options.get("kernel_size", 2)
        found = [] if size >= 1 else [f"kernel_size={size} must be 1 or larger"]
        if spec.grid is not None and len(spec.grid) != 2:
            found.append(f"the grid {spec.grid} must have two extents")
        return found

    def forward(
        self, q: Tensor, k: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries (B, H, N, D) and keys of the same shape.

        Raises:
            ValueError: if N does not fit the grid at any scale.
        """
        return self._convolve(q, query_mask), self._convolve(k, key_mask)

    def flops(self, num_tokens: int) -> int:
        return 2 * 2 * num_tokens * self.dim * self.weight.numel()

    def _convolve(self, x: Tensor, real: Tensor | None) -> Tensor:
        channels = x.transpose(1, 2).flatten(2)
        kernels = self.weight.expand(channels.shape[2], -1, -1)
        convolved = convolve(channels, kernels, real, self.prefix_tokens, self.grid)
        heads: Tensor = convolved.unflatten(2, (x.shape[1], x.shape[3]))
        return heads.transpose(1, 2)
