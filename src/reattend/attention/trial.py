"""Tries a mixer of the user's own on a few random numbers, so that its faults are told before a run begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reattend.attention.contract import MixerSpec
from reattend.attention.factory import LayeredMixerFactory, MixerFactory
from reattend.attention.own_mixer import told

FORWARD = "def forward(self, x, padding_mask=None, context=None, context_mask=None)"


def trial_problems(factory: MixerFactory | LayeredMixerFactory, spec: MixerSpec) -> list[str]:
    """What goes wrong when each kind of mixer in `factory` that is not ours is built and called once; empty if nothing.

    The mixer is called as a backbone calls it, in evaluation mode and without gradients, on x of shape
    (2, `spec.max_length`, `spec.dim`). If it can take a padding mask, the second half of the second sample is padding.
    The global random stream of the CPU does not move.

    Args:
        factory: one that finds no problems at `spec`.
        spec: `max_length` is the number of tokens, at least 2.
    """
    found = []
    tried: list[tuple[type, dict[str, Any]]] = []
    for name, kind, place in factory.kinds(spec):
        is_ours = kind.mixer_class.__module__.startswith("reattend.")
        if not is_ours and (kind.mixer_class, kind.options) not in tried:
            tried.append((kind.mixer_class, kind.options))
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                found += [f"{name}{problem}" for problem in _problems_of(kind, place)]
    return found


def _problems_of(kind: MixerFactory, spec: MixerSpec) -> list[str]:
    try:
        mixer = kind(spec)
    except Exception as error:
        return [told(error, kind.mixer_class, "__init__")]
    if "_modules" not in vars(mixer):
        return [f"{kind.mixer_class.__name__}.__init__ must call super().__init__() first"]
    x = torch.randn(2, spec.max_length, spec.dim)
    mask = None
    if kind.capabilities.padding_mask:
        mask = torch.ones(2, spec.max_length, dtype=torch.bool)
        mask[1, spec.max_length // 2 :] = False
    try:
        returned: object = mixer.eval()(x, mask)
    except Exception as error:
        return [f"{told(error, kind.mixer_class, 'forward')}; it was called with {_words(x)}, of {FORWARD}"]
    where = f"{kind.mixer_class.__name__}.forward"
    return [f"{where} returns {problem}" for problem in _output_problems(returned, x)]


def _output_problems(returned: object, x: Tensor) -> list[str]:
    wanted = f"it must return {_words(x)}, like x, or that and a dictionary of losses of shape (batch,)"
    y, losses = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(y, Tensor):
        return [f"{_words(y)}; {wanted}"]
    if y.shape != x.shape:
        return [f"{_words(y)} for x of {tuple(x.shape)}; {wanted}"]
    if not isinstance(losses, dict):
        return [f"{_words(losses)} beside its output; {wanted}"]
    found = [
        f"the loss '{name}' as {_words(loss)}; {wanted}"
        for name, loss in losses.items()
        if not isinstance(loss, Tensor) or loss.shape != x.shape[:1]
    ]
    numbers = [("values", y), *((f"the loss '{name}'", loss) for name, loss in losses.items())]
    return found or [f"{name} that are not all finite" for name, t in numbers if not t.isfinite().all()]


def _words(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
