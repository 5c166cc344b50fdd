"""Attentions of the configuration as layers to measure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from reattend.attention import LayeredMixerFactory, Mixer, MixerFactory, MixerSpec
from reattend.attention.trial import trial_problems
from reattend.config import ConfigError, build_mixer_factory, compose, read
from reattend.config.problems import refuse
from reattend.efficiency.arguments import Shape
from reattend.errors import ReattendError

FUSED, UNFUSED = "fused softmax", "softmax, unfused"
_TRIAL_LENGTH, _TRIAL_GRID = 64, (8, 8)


@dataclass(frozen=True)
class Candidate:
    """An attention and the place it is measured at."""

    factory: MixerFactory | LayeredMixerFactory
    spec: MixerSpec

    @property
    def claim(self) -> float:
        """p of the time N^p that it claims."""
        return self.factory.capabilities.time_exponent

    def build(self) -> Mixer:
        """The mixer, always with the same initial values."""
        torch.manual_seed(0)
        return self.factory(self.spec)


def candidate(name: str, overrides: Sequence[str], shape: Shape, *, on_grid: bool = False) -> Candidate:
    """`attention=name` at `shape`; scales alternate 1, 2 unless overridden, and attention dropout is 0.

    Args:
        name: the attention.
        overrides: for it.
        shape: the place.
        on_grid: put the tokens on a grid even if the attention does not need one.

    Raises:
        ConfigError: it cannot be configured or built there, with the reasons.
    """
    scales = [1 + head % 2 for head in range(shape.heads)]
    dims = [f"backbone.options.dim={shape.dim}", f"backbone.options.num_heads={shape.heads}"]
    common = [*dims, f"scales.value={scales}", "recipe.attention_dropout=0"]
    factory = build_mixer_factory(read(compose([f"attention={name}", *common, *overrides])))
    spec = shape.spec(on_grid or factory.capabilities.needs_grid)
    problems = factory.problems(spec)
    if not problems:
        small = replace(spec, max_length=_TRIAL_LENGTH, grid=_TRIAL_GRID if spec.grid else None)
        problems = trial_problems(factory, small)
    refuse([f"attention={name}: {problem}" for problem in problems])
    return Candidate(factory, spec)


def candidates(names: Iterable[str], overrides: Sequence[str], shape: Shape) -> dict[str, Candidate]:
    """`candidate` for each name.

    Raises:
        ReattendError: with the reasons of all that cannot be built.
    """
    found, problems = {}, []
    for name in dict.fromkeys(names):
        try:
            found[name] = candidate(name, overrides, shape)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ReattendError("\n".join(problems))
    return found


def fused_softmax(shape: Shape) -> Candidate:
    """What everything is compared with: softmax attention in one fused call."""
    return candidate("softmax", [], shape)


def unfused_softmax(shape: Shape) -> Candidate:
    """The same with its weights written out."""
    return candidate("softmax", ["attention.options.kernel.fused=false"], shape)
