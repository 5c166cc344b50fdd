"""What a check examines: a mechanism, the place that it is built for, and inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from reattend.attention import Capabilities, Mixer, MixerFactory, MixerSpec, split_losses
from reattend.attention.contract import Losses
from reattend.conformance.results import NotApplicable, Result

NOISE = 0.1
LONG = 131  # Longer than the usual chunks and blocks, and a multiple of none.
LONGEST = 523  # The same for the largest of them.


class Subject:
    """A mechanism at one place.

    Args:
        factory: builds the mixer, and finds no problems at `spec`.
        spec: the place. Sequences of all lengths up to `spec.max_length` are tried where the mixer takes them.
        batch_size: samples at once.

    Attributes:
        results: what checks have found, by their names.
    """

    def __init__(self, factory: MixerFactory, spec: MixerSpec, batch_size: int = 3) -> None:
        self.factory = factory
        self.spec = spec
        self.batch_size = batch_size
        self.capabilities: Capabilities = factory.capabilities
        self.results: dict[str, Result] = {}

    def longer(self, length: int = LONG, batch_size: int | None = None) -> Subject:
        """The same for more tokens, where there is no grid that would have to grow too."""
        if self.spec.grid is not None or self.spec.max_length >= length:
            return self
        return Subject(self.factory, replace(self.spec, max_length=length), batch_size or self.batch_size)

    def shorter(self, length: int) -> Subject:
        """The same for fewer tokens, where there is no grid that would have to shrink too."""
        if self.spec.grid is not None or self.spec.max_length <= length:
            return self
        return Subject(self.factory, replace(self.spec, max_length=length), self.batch_size)

    def __str__(self) -> str:
        """The place in words."""
        spec = self.spec
        words = [
            f"dim {spec.dim}",
            f"{spec.num_heads} heads" if spec.num_heads > 1 else "1 head",
            f"grid {'x'.join(map(str, spec.grid))}" if spec.grid else f"up to {spec.max_length} tokens",
        ]
        words += [f"{spec.prefix_tokens} prefix"] if spec.prefix_tokens else []
        return ", ".join([*words, "causal" if spec.causal else "not causal"])

    def requires(self, capability: str) -> None:
        """Ends the check as not applicable if the mixer lacks the capability."""
        if not getattr(self.capabilities, capability):
            words = capability.replace("_", " ")
            raise NotApplicable(self.capabilities.reasons.get(capability) or f"{words} is not claimed")

    def requires_causal(self, causal: bool = True) -> None:
        """Ends the check as not applicable at a place of the other kind."""
        if self.spec.causal is not causal:
            if causal and not self.capabilities.causal:
                self.requires("causal")
            raise NotApplicable("of causal mixers only" if causal else "of mixers that are not causal only")

    @property
    def takes_other_lengths(self) -> bool:
        """Whether fewer tokens than `spec.max_length` are fine here."""
        return self.capabilities.variable_length and self.spec.grid is None

    @property
    def lengths(self) -> list[int]:
        """Numbers of tokens to try, the largest last."""
        longest, shortest = self.spec.max_length, self.spec.prefix_tokens + 1
        if not self.takes_other_lengths:
            return [longest]
        return sorted({n for n in (1, 2, 3, longest // 2, longest - 1, longest) if n >= shortest})

    @cached_property
    def dtype(self) -> torch.dtype:
        """Most exact type that the mixer runs in."""
        try:
            self.outputs(self.mixer(torch.float64), self.tokens(torch.float64))
        except Exception:
            return torch.float32
        return torch.float64

    @cached_property
    def noise(self) -> float:
        """Relative size of rounding errors of the output, seen as the second difference over a tiny step."""
        mixer, x = self.mixer(self.dtype), self.tokens(self.dtype)
        found = []
        for seed in (1, 2):
            step = 1e-6 * self.tokens(self.dtype, seed=seed)
            with torch.no_grad():
                above, middle, below = (self.outputs(mixer, z)[0].double() for z in (x + step, x, x - step))
            found.append(((above - 2 * middle + below).abs().max() / middle.abs().max().clamp(min=1e-30)).item())
        return min(found)

    @property
    def tolerance(self) -> float:
        """Relative difference that rounding may make between two ways to compute the same."""
        return 1e-8 if self.dtype == torch.float64 and self.noise < 1e-9 else 2e-4

    def mixer(self, dtype: torch.dtype | None = None, *, seed: int = 0, noise: float = NOISE) -> Mixer:
        """A new mixer in evaluation mode, the same for the same arguments, its parameters moved off special values."""
        with self.reproducible(seed):
            mixer = self._build()
            with torch.no_grad():
                for parameter in mixer.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=noise)
        return mixer.to(dtype or self.dtype).eval()

    def _build(self) -> Mixer:
        """What the factory builds, without asking for problems again and apart from all mixers that it built before."""
        kind, options = self.factory.mixer_class, self.factory.options
        mixer, shared = kind(self.spec, **options), kind.shared(self.spec, **options)
        if shared is not None:
            mixer.use_shared(shared)
        return mixer

    def tokens(
        self,
        dtype: torch.dtype | None = None,
        *,
        length: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Normally distributed tokens (B, N, D)."""
        shape = batch_size or self.batch_size, length or self.spec.max_length, self.spec.dim
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype or self.dtype)

    def mask(self, length: int | None = None, *, right: bool = False, batch_size: int | None = None) -> Tensor:
        """A padding mask (B, N) with real tokens everywhere or, with `right`, in front of padding; prefix is real."""
        shape = batch_size or self.batch_size, length or self.spec.max_length
        if right:
            real = torch.linspace(0.4, 0.9, shape[0]).mul(shape[1]).long().clamp(min=self.spec.prefix_tokens + 1)
            return torch.arange(shape[1]) < real[:, None]
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(7)) < 0.7
        mask[:, : self.spec.prefix_tokens + 1] = True
        mask[-1, -1] = False
        return mask

    def usual_mask(self, x: Tensor) -> Tensor | None:
        """A mask that right-pads `x`, or None for a mixer that takes none."""
        return self.mask(x.shape[1], right=True, batch_size=x.shape[0]) if self.capabilities.padding_mask else None

    def outputs(self, mixer: Mixer, x: Tensor, *inputs: Tensor | None, seed: int = 0) -> tuple[Tensor, Losses]:
        """The mixer's output and losses, from a random stream of its own."""
        with self.reproducible(seed):
            return split_losses(mixer(x, *inputs))

    @contextmanager
    def reproducible(self, seed: int = 0) -> Iterator[None]:
        """A random stream that starts at `seed`, and leaves the global one alone."""
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_rng_state(before)


def total(y: Tensor, losses: Losses, seed: int = 11) -> Tensor:
    """A number that depends on every element of the output and of the losses."""
    value = torch.zeros((), dtype=torch.float64)
    for index, part in enumerate([y, *(losses[name] for name in sorted(losses))]):
        weight = torch.randn(part.shape, generator=torch.Generator().manual_seed(seed + index), dtype=torch.float64)
        value = value + (part.double() * weight).sum()
    return value


Gradients = dict[str, Tensor | None]


def forward_backward(
    subject: Subject, mixer: Mixer, x: Tensor, *inputs: Tensor | None
) -> tuple[Tensor, Losses, Gradients]:
    """Output, losses, and gradients of `total` in "x" and in every parameter that wants one, by name; None for none."""
    x = x.detach().clone().requires_grad_()
    leaves = {"x": x} | {name: p for name, p in mixer.named_parameters() if p.requires_grad}
    y, losses = subject.outputs(mixer, x, *inputs)
    value = total(y, losses)
    found: Gradients = dict.fromkeys(leaves)
    if value.requires_grad:
        got = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        found = dict(zip(leaves, got, strict=True))
    return y.detach(), {name: loss.detach() for name, loss in losses.items()}, found


def gradients(subject: Subject, mixer: Mixer, x: Tensor, *inputs: Tensor | None) -> Gradients:
    """The gradients of `forward_backward`."""
    return forward_backward(subject, mixer, x, *inputs)[2]
