"""A sound mixer, and one deliberately wrong in each way that a check finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor, nn

from reattend.attention import Capabilities, Mixer, MixerSpec, MultiHeadAttention

EVERYTHING = Capabilities(
    causal=True, context=True, decoding=True, attention_map=True, constant_state=True, time_exponent=2.0
)
BARE = replace(EVERYTHING, context=False, decoding=False, attention_map=False)
SEEN: list[int] = []


class Sound(Mixer):
    """Every token gets the gated mean of the values of the tokens that it sees."""

    claims: ClassVar[Capabilities] = EVERYTHING

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.value = nn.Linear(spec.dim, spec.dim)
        self.gate = nn.Linear(spec.dim, spec.dim)
        self.register_buffer("features", torch.randn(spec.dim))

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return cls.claims

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Any:
        source, mask = (x, padding_mask) if context is None else (context, context_mask)
        return self.gated(x, self.weights(x, source, mask) @ self.value(source))

    def weights(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        seen = torch.ones(x.shape[0], x.shape[1], source.shape[1], dtype=x.dtype, device=x.device)
        if self.spec.causal:
            seen = seen.tril()
        if mask is not None:
            seen = seen * mask[:, None, :]
        return seen / seen.sum(-1, keepdim=True).clamp(min=1)

    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return y * self.gate(x).sigmoid() + self.features.to(x.dtype) * x

    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        like = self.value.weight
        return {"sum": like.new_zeros(batch_size, self.spec.dim), "count": like.new_zeros(batch_size, 1)}

    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        after = {"sum": state["sum"] + self.value(x_t), "count": state["count"] + 1}
        return self.gated(x_t, after["sum"] / after["count"]), after

    def attention_map(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.weights(x, x, padding_mask)[:, None].expand(-1, self.spec.num_heads, -1, -1)

    def flops(self, length: int) -> int:
        return 4 * length * self.spec.dim**2 + 2 * length**2 * self.spec.dim


class Bare(Sound):
    """The same without a context, decoding and a map, which a fault in `weights` would spoil too."""

    claims = BARE


class SeesTheFuture(Bare):
    def weights(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        weights = super().weights(x, source, mask)
        return weights + 0.01 * weights.mT * (1 if mask is None else mask[:, None, :])


class NeverCausal(Bare):
    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(replace(spec, causal=False))


class CountsTheFuture(Bare):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Tensor:
        count = x.shape[1] if padding_mask is None else padding_mask.sum(1).to(x.dtype)[:, None, None]
        return super().forward(x, padding_mask) * (1 + 0.1 * count)  # type: ignore[no-any-return]


class SeesTheFutureInTraining(Bare):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gated(x, y) + (0.01 * x.flip(1) if self.training else 0.0)


class SeesTheFutureOfLongSequences(Bare):
    def weights(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        weights = super().weights(x, source, mask)
        return weights + 0.01 * weights.mT if x.shape[1] > 200 else weights


class TakesCausal(Bare):
    claims = replace(BARE, causal=False)

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        return []


class SeesPadding(Bare):
    def weights(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        return super().weights(x, source, None)


class SeesPaddingInTraining(Bare):
    def weights(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        return super().weights(x, source, None if self.training else mask)


class CountsPadding(Bare):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Tensor:
        return super().forward(x, padding_mask) * (1 + 0.1 * x.shape[1])  # type: ignore[no-any-return]


class LossOverPadding(Bare):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Any:
        return super().forward(x, padding_mask), {"size": x.square().mean((1, 2))}


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        return slopes[0], slopes[0].flip(1)


class GradientIntoPadding(Bare):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Any:
        y = super().forward(x, padding_mask)
        return y if padding_mask is None else _StraightThrough.apply(y, x)


class WrongStep(Sound):
    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        _, after = super().step(x_t, state)
        return self.gated(x_t, state["sum"] / state["count"].clamp(min=1)), after


class GrowingState(Sound):
    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        return {"past": self.value.weight.new_zeros(batch_size, 0, self.spec.dim)}

    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        past = torch.cat([state["past"], self.value(x_t)[:, None]], dim=1)
        return self.gated(x_t, past.mean(1)), {"past": past}


class StateInPlace(Sound):
    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        state["sum"] += self.value(x_t)
        state["count"] += 1
        return self.gated(x_t, state["sum"] / state["count"]), state


class StateWithoutBatch(Sound):
    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        return super().initial_state(batch_size) | {"count": torch.zeros(1, 1)}


class UnusedParameter(Sound):
    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(spec)
        self.scale = nn.Parameter(torch.ones(spec.dim))


class ZeroGradient(Sound):
    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(spec)
        self.scale = nn.Parameter(torch.ones(spec.dim))

    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gated(x, y) + self.scale * 0.0


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        return 2 * slopes[0]


class WrongGradient(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gated(x, _Doubled.apply(y))  # type: ignore[no-untyped-call]


class DetachedWeight(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gated(x, y) + x * self.value.bias.detach()


class InfiniteGradient(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gated(x, y) + (x - x).square().sum(-1, keepdim=True).sqrt()


class RandomInEvaluation(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gated(x, y) * (1 + 0.01 * torch.rand((), dtype=x.dtype))


class NumpyInTraining(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        noise = numpy.random.default_rng().random() if self.training else 0.0
        return super().gated(x, y) * (1 + noise)


class CountsCalls(Sound):
    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(spec)
        self.calls = 0

    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return super().gated(x, y)


class RemembersInItsFile(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        SEEN.append(x.shape[1])
        return super().gated(x, y)


class MovingAverage(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            self.features.mul_(0.999)
        return super().gated(x, y)


class ChangesItsInput(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        out = super().gated(x, y)
        x.data *= 0.5
        return out


class BatchMean(Bare):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Any:
        y = super().forward(x, padding_mask)
        real = torch.ones_like(x[..., :1]) if padding_mask is None else padding_mask[..., None].to(x.dtype)
        return y - (x * real).sum(0) / real.sum(0).clamp(min=1)


class BatchNorm(Sound):
    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(spec)
        self.norm = nn.BatchNorm1d(spec.dim)

    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(super().gated(x, y).flatten(0, -2)).view_as(x)  # type: ignore[no-any-return]


class BreaksTheGraph(Sound):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Any:
        if x.abs().max().item() > 1e9:
            raise ValueError("too large")
        return super().forward(x, padding_mask, *context)


class ForgottenBuffer(Sound):
    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(spec)
        del self.features
        self.features = torch.randn(spec.dim)


class OtherShapes(Sound):
    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(spec)
        self.register_buffer("rows", torch.zeros(int(torch.randint(1, 1000, ()))))


class CannotBeCopied(Sound):
    def __init__(self, spec: MixerSpec) -> None:
        super().__init__(spec)
        self.scaled = self.value.weight * 2.0


class Overflows(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return y * self.gate(x).exp()


class DividesByNothing(Bare):
    def weights(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        seen = super().weights(x, source, mask)
        return seen / seen.sum(-1, keepdim=True) if mask is None or not self.spec.causal else seen


class DividesByZeroTokens(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gated(x, y) + x / x.norm(dim=-1, keepdim=True)


class SingleInside(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gated(x, y.float().to(x.dtype))


class FailsInDouble(Sound):
    def weights(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        weights = super().weights(x, source, mask)
        return weights.float() if not torch.is_autocast_enabled("cpu") else weights


class CoarseInBfloat16(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        return super().gated(x, y) * (1.5 if torch.is_autocast_enabled("cpu") else 1.0)


class HalfTheFlops(Sound):
    def flops(self, length: int) -> int:
        return super().flops(length) // 2


class LossOverTheBatch(Sound):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Any:
        return super().forward(x, padding_mask, *context), {"size": x.square().mean()}


class OneForTheSequence(Sound):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Any:
        return super().forward(x, padding_mask, *context).mean(1)


class FailsAtOneToken(Sound):
    def gated(self, x: Tensor, y: Tensor) -> Tensor:
        if x.dim() == 3 and x.shape[1] == 1:
            raise ValueError("variance of one token")
        return super().gated(x, y)


class NeedsContiguous(Bare):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Any:
        return super().forward(x.view(x.shape[0] * x.shape[1], -1).view(x.shape), padding_mask)


class Quadratic(Sound):
    claims = replace(EVERYTHING, time_exponent=1.0)


class ClaimsDecoding(Mixer):
    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.proj = nn.Linear(spec.dim, spec.dim)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(causal=True, decoding=True)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Any:
        return self.proj(x)


class MisspeltDecay(Sound):
    def no_weight_decay(self) -> set[str]:
        return {"gates.bias"}


class IgnoresContext(Sound):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *context: Any) -> Any:
        return super().forward(x, padding_mask)


class SeesPaddedContext(Sound):
    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, context: Tensor | None = None, *context_mask: Any
    ) -> Any:
        return super().forward(x, padding_mask, context)


class MapOfTheFuture(Sound):
    def attention_map(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().attention_map(x, None)


class OtherMap(MultiHeadAttention):
    def attention_map(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().attention_map(x, padding_mask) ** 2
