"""Queries and keys convolved along the sequence with one kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from reattend.attention.contract import Capabilities, MixerSpec
from reattend.attention.ops.convolution import convolve, identity_kernels
from reattend.attention.slots import EVERYTHING, Projection


class Conv1dProjection(Projection):
    """h_i = sum_j softmax_j(Conv1D(Q, s)_i . Conv1D(K, s)_j / sqrt(D)) v_j (primal-dual paper, Appendix H, Def 4).

    Conv1D(X, s)_i = sum_{o=0}^{s-1} w_o x_{i + o - floor((s - 1) / 2)}: one kernel w for queries and keys, and for all
    heads and channels; it follows the linear layer, and values are not convolved. Outside the sequence, and at padding,
    are zeros. Prefix tokens are neither convolved nor seen by others. w starts as the identity plus small noise. The
    paper leaves all this but the shared kernel open.

    Args:
        spec: the place it is built for.
        kernel_size: s; 5 in the paper.
    """

    def __init__(self, spec: MixerSpec, *, kernel_size: int = 5) -> None:
        super().__init__(spec)
        self.prefix_tokens = spec.prefix_tokens
        self.weight = nn.Parameter(identity_kernels(kernel_size, dimensions=1))

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        reasons = {"causal": "a convolved key holds tokens of the future"}
        return replace(EVERYTHING, causal=False, decoding=False, reasons=reasons)

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        size = options.get("kernel_size", 5)
        return [] if size >= 1 else [f"kernel_size={size} must be 1 or larger"]

    def tokens(
        self, x: Tensor, source: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens as they are.

        Raises:
            ValueError: for a context where there are prefix tokens, which a context has not.
        """
        if source is not x and self.prefix_tokens:
            raise ValueError("conv1d takes no context beside prefix tokens: the two would have to be told apart")
        return x, source, source

    def forward(
        self, q: Tensor, k: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return self._convolve(q, query_mask), self._convolve(k, key_mask)

    def flops(self, num_tokens: int) -> int:
        return 2 * 2 * num_tokens * self.dim * self.weight.numel()

    def _convolve(self, x: Tensor, real: Tensor | None) -> Tensor:
        channels = x.transpose(1, 2).flatten(2)
        kernels = self.weight.expand(channels.shape[2], -1)
        convolved = convolve(channels, kernels, real, self.prefix_tokens, None)
        heads: Tensor = convolved.unflatten(2, (x.shape[1], x.shape[3]))
        return heads.transpose(1, 2)
