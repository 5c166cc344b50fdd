"""The contract between a backbone and the token mixers it is built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from reattend.attention.lookup import option_problems
from reattend.errors import ReattendError

# A plain name is that of a loss, which is averaged over the samples of a batch. One that ends in `SQUARED_MEAN` is
# averaged over the whole batch, however it is spread, and then squared. One with a slash, "ksvd/A_e/0", is a
# measurement, which is logged and part of no loss.
Losses = dict[str, Tensor]
SQUARED_MEAN = "^2"
State = dict[str, Tensor]


@dataclass(frozen=True)
class MixerSpec:
    """All that a backbone tells a mixer about the place it is built for.

    Attributes:
        dim: width D of the tokens.
        num_heads: number of heads H.
        max_length: largest number of tokens N, prefix tokens included.
        grid: extents of the token grid (its product is N without prefix tokens), or None for a sequence.
        prefix_tokens: tokens in front of the grid or sequence that are no part of it (a class token).
        causal: whether token t may only see tokens up to t.
        layer: index of the layer, from 0.
        num_layers: number of layers of the backbone.
    """

    dim: int
    num_heads: int
    max_length: int
    grid: tuple[int, ...] | None = None
    prefix_tokens: int = 0
    causal: bool = False
    layer: int = 0
    num_layers: int = 1


@dataclass(frozen=True)
class Capabilities:
    """What a mixer can do, known without building it.

    Attributes:
        causal: has a causal form.
        padding_mask: real tokens are blind to tokens that `padding_mask` marks as padding.
        context: takes keys and values from another sequence.
        decoding: has `initial_state` and `step`.
        variable_length: takes sequences shorter than `MixerSpec.max_length`.
        needs_grid: works on `MixerSpec.grid` only.
        attention_map: has `attention_map`.
        constant_state: the state of `step` has one size however many tokens it has seen.
        blind_to_future: the causal form's outputs do not move by a bit when later tokens change.
        time_exponent: p of the time N^p that the mechanism claims for N tokens.
        reasons: for a capability that is missing, why. Other names are notes: "padding_on_purpose" where padding is
            seen as the followed code does, "accumulation" where a loss is of the whole batch's mean, so that gradients
            of parts of a batch do not add up, "batch" where samples depend on each other in training, "losses" where
            losses of its own come with the output, "gradient" where gradients are no slopes of the output.
    """

    causal: bool = False
    padding_mask: bool = True
    context: bool = False
    decoding: bool = False
    variable_length: bool = True
    needs_grid: bool = False
    attention_map: bool = False
    constant_state: bool = False
    blind_to_future: bool = True
    time_exponent: float = 2.0
    reasons: Mapping[str, str] = field(default_factory=dict)


def intersect(parts: Iterable[tuple[str, Capabilities]]) -> Capabilities:
    """What all `parts` can do together.

    Args:
        parts: pairs of a name ("" for none) and capabilities. The reason for a missing capability is that of the first
            part that lacks it, after the part's name; a note is that of the first part that has it.
    """
    named = list(parts)
    names = [f.name for f in fields(Capabilities) if f.name != "reasons"]
    flags = {}
    reasons = {
        note: f"{name}: {reason}" if name else reason
        for name, capabilities in reversed(named)
        for note, reason in capabilities.reasons.items()
        if note not in names
    }
    for flag in names:
        if flag == "needs_grid":
            flags[flag] = any(capabilities.needs_grid for _, capabilities in named)
            continue
        if flag == "time_exponent":
            exponent = max(capabilities.time_exponent for _, capabilities in named)
            continue
        lacking = [(name, capabilities) for name, capabilities in named if not getattr(capabilities, flag)]
        flags[flag] = not lacking
        for name, capabilities in lacking[:1]:
            reason = capabilities.reasons.get(flag, "")
            if name or reason:
                reasons[flag] = f"{name}: {reason or f'it has no {flag}'}" if name else reason
    return Capabilities(**flags, time_exponent=exponent, reasons=reasons)


class Mixer(nn.Module, ABC):
    """A layer that mixes tokens: (B, N, D) to (B, N, D).

    A subclass takes a `MixerSpec` as its first argument and its own options as keyword arguments with type hints.

    Attributes:
        revision: raised when a fix changes results, so that runs before and after are told apart.
    """

    revision: ClassVar[int] = 0

    @classmethod
    @abstractmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        """What the mixer can do when it is built with `options`."""

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        """Reasons why the mixer cannot be built with `options` for `spec`; empty if it can."""
        capabilities = cls.capabilities(**options)
        found = []
        if spec.dim % spec.num_heads:
            found.append(f"num_heads={spec.num_heads} does not divide dim={spec.dim}")
        if spec.causal and not capabilities.causal:
            found.append(f"it is not causal: {capabilities.reasons.get('causal', 'it has no causal form')}")
        if capabilities.needs_grid and spec.grid is None:
            found.append("it works on a grid of tokens and the backbone has none")
        return found

    @classmethod
    def refuse_problems(cls, spec: MixerSpec, **options: Any) -> None:
        """For the start of `__init__`: raises a `ReattendError` with all wrong options, else all `problems`, if any."""
        found = option_problems(cls.__name__, cls, options) or cls.problems(spec, **options)
        if found:
            raise ReattendError(f"{cls.__name__} cannot be built: " + "; ".join(found))

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Losses]:
        """Mixes the tokens of `x`.

        Args:
            x: (B, N, D).
            padding_mask: (B, N), True at real tokens; None if all are real.
            context: (B, M, D) that keys and values come from; None means `x` itself.
            context_mask: (B, M), True at real tokens of `context`.

        Returns:
            (B, N, D), or that and a dictionary of losses of shape (B,), one entry per sample; see `Losses` for names.
        """

    def initial_state(self, batch_size: int) -> State:
        """State before the first token, for `step`."""
        raise NotImplementedError(f"{type(self).__name__} cannot decode step by step")

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Output (B, D) for the next token (B, D), and the state after it; equals the causal parallel form."""
        raise NotImplementedError(f"{type(self).__name__} cannot decode step by step")

    def attention_map(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Weights (B, H, N, M) that the values are averaged with."""
        raise NotImplementedError(f"{type(self).__name__} has no attention map")

    def flops(self, length: int) -> int:
        """Floating-point operations of the forward pass for one sample of `length` tokens, 2 per multiply-add."""
        raise NotImplementedError(f"{type(self).__name__} does not state its floating-point operations")

    @classmethod
    def shared(cls, spec: MixerSpec, **options: Any) -> nn.Module | None:
        """A new module that the mixers of all layers of one backbone are to hold together, or None.

        A factory builds it for the first layer of a backbone, and hands it to every layer by `use_shared`.
        """
        return None

    def use_shared(self, module: nn.Module) -> None:
        """Puts what `shared` built for all layers in place of this mixer's own."""
        raise NotImplementedError(f"{type(self).__name__} shares nothing with other layers")

    def no_weight_decay(self) -> set[str]:
        """Names of own parameters that weight decay must leave alone, beside vectors and scalars."""
        return set()


@runtime_checkable
class StartsSteps(Protocol):
    """A module, a mixer or any part of one, that is told of each training step; random features are redrawn so.

    Whoever trains a model calls `start_step` of all its modules that have it before each optimiser step, outside of
    `forward`. What it changes are buffers, as a function of other buffers and of `step` alone: then all processes agree
    and an interrupted run continues as if it had not been.
    """

    def start_step(self, step: int) -> None:
        """`step` is the number of optimiser steps taken, the same for all micro-batches of one step."""


def check_mask(mask: Tensor | None, name: str = "padding_mask") -> None:
    """Raises a `ValueError` for a mask that is not bool."""
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"{name} must be bool, True at real tokens, not {mask.dtype}")


def check_decodes(spec: MixerSpec) -> None:
    """Raises a `ValueError` in `step` of a mixer that is not built causal."""
    if not spec.causal:
        raise ValueError("only a mixer that is built with causal=True decodes step by step")


def split_losses(output: Tensor | tuple[Tensor, Losses]) -> tuple[Tensor, Losses]:
    """The two parts of what a mixer returned."""
    return output if isinstance(output, tuple) else (output, {})
