"""What fills the slots of multi-head attention: projection, kernel, and a kernel's feature map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reattend.attention.contract import Capabilities, MixerSpec, State

EVERYTHING = Capabilities(causal=True, context=True, decoding=True, attention_map=True)


class Projection(nn.Module, ABC):
    """What happens to queries and keys between the linear layer and the heads' attention.

    A subclass takes a `MixerSpec` first and its own options as keyword-only arguments with type hints.
    """

    @classmethod
    @abstractmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        """What attention with this projection can do."""

    @abstractmethod
    def forward(
        self, q: Tensor, k: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries (B, H, N, D) and keys (B, H, M, D), of the same shapes; masks (B, N), (B, M), True at real tokens."""


class Kernel(nn.Module, ABC):
    """How queries meet keys: the similarity and its normaliser, applied to the values.

    A subclass takes a `MixerSpec` first and its own options as keyword-only arguments with type hints.

    Attributes:
        shift_invariant: adding one vector to all keys changes nothing. Recentring then subtracts the plain mean from
            the keys; other kernels see keys and queries minus beta times the mean.
        dropout: attention weights can be dropped.
    """

    shift_invariant: ClassVar[bool] = False
    dropout: ClassVar[bool] = False

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.head_dim = spec.dim // spec.num_heads
        self.causal = spec.causal

    @classmethod
    @abstractmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        """What attention with this kernel and these options can do."""

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        """Reasons why the kernel cannot be built with `options` for `spec`, beyond names and types; empty if it can."""
        return []

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, dropout: float = 0.0) -> Tensor:
        """Attends.

        Args:
            q: (B, H, N, D). H may be some of the heads only.
            k: (B, H, M, D), in a wider type than `v` where recentring asks for it.
            v: (B, H, M, D).
            key_mask: (B, M), True at real keys.
            dropout: probability of dropping an attention weight.

        Returns:
            (B, H, N, D), zero for a query that sees no real key.
        """

    @abstractmethod
    def flops(self, num_queries: int, num_keys: int) -> int:
        """Floating-point operations of one head for one sample, 2 per multiply-add."""

    def weights(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Weights (B, H, N, M) that the values are averaged with."""
        raise NotImplementedError(f"{type(self).__name__} has no attention map")

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        """State before the first token, the batch in front in every tensor."""
        raise NotImplementedError(f"{type(self).__name__} cannot decode step by step")

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """Output (B, H, 1, D) for the next query, key and value (B, H, 1, D), and the state after it."""
        raise NotImplementedError(f"{type(self).__name__} cannot decode step by step")


class FeatureMap(nn.Module, ABC):
    """A map phi so that phi(q) . phi(k) is the similarity of a linear kernel."""

    @abstractmethod
    def num_features(self, head_dim: int) -> int:
        """Length of phi(x) for x of length `head_dim`."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """phi(x): (..., D) to (..., F)."""

    @abstractmethod
    def up_to_scale(self, x: Tensor) -> Tensor:
        """phi(x) times a positive factor per token, a constant to autograd, that keeps phi(x) from underflowing.

        For queries of a normalised kernel, where the factor cancels exactly.
        """
