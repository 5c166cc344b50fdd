"""What fills the slots of multi-head attention: projection, kernel, and a kernel's feature map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reattend.attention.contract import Capabilities, MixerSpec, State

EVERYTHING = Capabilities(
    causal=True, context=True, decoding=True, attention_map=True, constant_state=True, time_exponent=1.0
)


@dataclass(frozen=True)
class HeadGroup:
    """Heads that attend in one call, and what their keys are.

    Attributes:
        heads: indices of the heads among those of the layer.
        scale: number of tokens in the window that a key stands for.
        prefix: tokens in front that are no part of a window and each have a key of their own.
    """

    heads: tuple[int, ...]
    scale: int = 1
    prefix: int = 0


class Projection(nn.Module, ABC):
    """What happens to the tokens before the linear layer, and to queries and keys between it and the heads' attention.

    A subclass takes a `MixerSpec` first and its own options as keyword-only arguments with type hints.
    """

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.dim = spec.dim

    @classmethod
    @abstractmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        """What attention with this projection can do."""

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        """Reasons why the projection cannot be built with `options` for `spec`, beyond names and types."""
        return []

    def tokens(
        self, x: Tensor, source: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the linear layer makes queries, keys and values from.

        Args:
            x: (B, N, D) tokens that attend.
            source: (B, M, D) tokens that are attended to; `x` itself in self-attention.
            query_mask: (B, N), True at real tokens.
            key_mask: (B, M).

        Returns:
            (B, N, D), (B, M, D), (B, M, D); by default the tokens as they are.
        """
        return x, source, source

    def forward(
        self, q: Tensor, k: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries (B, H, N, D) and keys (B, H, M, D), of the same shapes; masks (B, N), (B, M), True at real tokens."""
        return q, k

    def flops(self, num_tokens: int) -> int:
        """Floating-point operations for one sample that attends to itself, 2 per multiply-add, the linear layer not."""
        return 0


class Kernel(nn.Module, ABC):
    """How queries meet keys: the similarity and its normaliser, applied to the values.

    A subclass takes a `MixerSpec` first and its own options as keyword-only arguments with type hints.

    Attributes:
        shift_invariant: adding one vector to all keys changes nothing. Recentring then subtracts the plain mean from
            the keys; other kernels see keys and queries minus beta times the mean.
        dropout: attention weights can be dropped.
        pooled_keys: a key may stand for a window of tokens, so that there are fewer keys than queries (scaled heads).
    """

    shift_invariant: ClassVar[bool] = False
    dropout: ClassVar[bool] = False
    pooled_keys: ClassVar[bool] = True

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
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        dropout: float = 0.0,
        group: HeadGroup | None = None,
    ) -> Tensor:
        """Attends.

        Args:
            q: (B, H, N, D). H may be some of the heads only.
            k: (B, H, M, D), in a wider type than `v` where recentring asks for it.
            v: (B, H, M, D).
            key_mask: (B, M), True at real keys.
            query_mask: (B, N), True at real queries, for kernels whose outputs depend on other queries.
            dropout: probability of dropping an attention weight.
            group: which heads these are and what their keys stand for; None for all heads and a key per token.

        Returns:
            (B, H, N, D), zero for a query that sees no real key.
        """

    @abstractmethod
    def flops(self, num_queries: int, num_keys: int) -> int:
        """Floating-point operations of one head for one sample, 2 per multiply-add."""

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        group: HeadGroup | None = None,
    ) -> Tensor:
        """Weights (B, H, N, M) that the values are averaged with; arguments as those of `forward`."""
        raise NotImplementedError(f"{type(self).__name__} has no attention map")

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        """State before the first token, the batch in front in every tensor."""
        raise NotImplementedError(f"{type(self).__name__} cannot decode step by step")

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """Output (B, H, 1, D) for the next query, key and value (B, H, 1, D), and the state after it."""
        raise NotImplementedError(f"{type(self).__name__} cannot decode step by step")


class FeatureMap(nn.Module, ABC):
    """A map phi so that phi(q) . phi(k) is the similarity of a linear kernel.

    A subclass takes a `MixerSpec` first and its own options as keyword-only arguments with type hints.

    Attributes:
        scales_keys: features of a key may over- or underflow, so that keys too are mapped by `scaled`. It costs time. A
            subclass with a `scaled` of its own has it, unless it says otherwise.
        random: the map draws numbers when it is built, so that queries and keys must be mapped by one and the same.
    """

    scales_keys: ClassVar[bool] = False
    random: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "scaled" in vars(cls) and "scales_keys" not in vars(cls):
            cls.scales_keys = True

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        """Reasons why the map cannot be built with `options` for `spec`, beyond names and types; empty if it can."""
        return []

    @abstractmethod
    def num_features(self, head_dim: int) -> int:
        """Length of phi(x) for x of length `head_dim`."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """phi(x): (..., D) to (..., F), float32 or float64."""

    def flops(self, num_tokens: int, head_dim: int) -> int:
        """Floating-point operations of phi for the tokens of one head, 2 per multiply-add; elementwise work is none."""
        return 0

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """phi(x) exp(-s), which neither over- nor underflows, and s (..., 1); None stands for zero.

        s is a constant to autograd, so that multiplying by exp(s) later gives phi's own gradient. In a normalised
        kernel the s of a query cancels exactly, and of the keys' s only differences count.
        """
        return self(x), None
