"""Convolutional projections of queries, keys and values, as in CvT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from reattend.attention.contract import Capabilities, MixerSpec
from reattend.attention.ops.convolution import convolve, identity_kernels
from reattend.attention.slots import EVERYTHING, Projection


class CvtProjection(Projection):
    """Q = Conv2D(X, W_q) W_Q^T, K = Conv2D(X, W_k) W_K^T, V = Conv2D(X, W_v) W_V^T: depth-wise separable convolutions.

    CvT (Wu et al. 2021, arXiv 2103.15808, Eqn 2); primal-dual paper, Appendix G, on tokens reshaped to the grid. Each
    of W_q, W_k, W_v has a kernel of its own for every channel, and comes before the linear layer. Where the place has
    no grid the convolution runs along the sequence. Outside the grid or sequence, and at padding, are zeros. Prefix
    tokens are neither convolved nor seen by others. The kernels start as the identity plus small noise.

    CvT's batch normalisation between convolution and linear layer is left out, as the primal-dual paper's form has
    none and as it would make samples depend on each other; its stride is 1 here, for a key per token. Other than
    `spec.grid` it takes grids of the same aspect ratio. It takes no context, whose grid it is not told.

    Args:
        spec: the place it is built for; its grid, if any, has one or two extents.
        kernel_size: extent of a kernel in each direction; 3 in CvT.
    """

    def __init__(self, spec: MixerSpec, *, kernel_size: int = 3) -> None:
        super().__init__(spec)
        self.prefix_tokens = spec.prefix_tokens
        self.grid = spec.grid if spec.grid is not None and len(spec.grid) == 2 else None
        dimensions = 1 if self.grid is None else 2
        kernels = identity_kernels(3, spec.dim, *[kernel_size] * dimensions, dimensions=dimensions)
        self.weight = nn.Parameter(kernels)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        reasons = {
            "causal": "a convolved token holds tokens of the future",
            "context": "the grid of a context is not known",
        }
        return replace(EVERYTHING, causal=False, context=False, decoding=False, reasons=reasons)

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        size = options.get("kernel_size", 3)
        found = [] if size >= 1 else [f"kernel_size={size} must be 1 or larger"]
        if spec.grid is not None and len(spec.grid) > 2:
            found.append(f"the grid {spec.grid} must have one or two extents")
        return found

    def tokens(
        self, x: Tensor, source: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the linear layer makes queries, keys and values from: three convolutions of (B, N, D).

        Raises:
            ValueError: if N does not fit the grid at any scale.
        """
        parts = zip((x, source, source), (query_mask, key_mask, key_mask), self.weight, strict=True)
        q, k, v = (convolve(t, kernels, real, self.prefix_tokens, self.grid) for t, real, kernels in parts)
        return q, k, v

    def flops(self, num_tokens: int) -> int:
        return 2 * num_tokens * self.weight.numel()
