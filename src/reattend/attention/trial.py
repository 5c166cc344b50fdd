"""Tries what is the user's own on a few random numbers, so that its faults are told before a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reattend.attention.contract import Mixer, MixerSpec
from reattend.attention.factory import LayeredMixerFactory, MixerFactory
from reattend.attention.own_mixer import Part, own_parts, told
from reattend.attention.slots import FeatureMap, Kernel, Projection
from reattend.errors import ReattendError

FORWARD = "def forward(self, x, padding_mask=None, context=None, context_mask=None)"


def trial_problems(factory: MixerFactory | LayeredMixerFactory, spec: MixerSpec) -> list[str]:
    """What goes wrong when each kind of mixer in `factory` that is not all ours is built and called once.

    A mixer is not all ours if its class is not, or that of a projection, kernel or feature map among its options. It is
    called as a backbone calls it, in evaluation mode and without gradients, on x of shape
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
        own = [*([] if is_ours else [kind.mixer_class]), *dict.fromkeys(part for part, _ in own_parts(kind.options))]
        if own and (kind.mixer_class, kind.options) not in tried:
            tried.append((kind.mixer_class, kind.options))
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                found += [f"{name}{problem}" for problem in _problems_of(kind, place, own)]
    return found


class _WrongOutputError(ReattendError):
    """What fills a slot returned something of another form than its contract says."""


def _problems_of(kind: MixerFactory, spec: MixerSpec, own: Sequence[type[Mixer | Part]]) -> list[str]:
    try:
        mixer = kind(spec)
    except Exception as error:
        return [told(error, own, "__init__")]
    for module in _not_begun(mixer):
        arguments = "spec" if isinstance(module, Part) else ""
        return [f"{type(module).__name__}.__init__ must call super().__init__({arguments}) first"]
    for module in mixer.modules():
        if isinstance(module, Part) and type(module) in own:
            module.register_forward_hook(_check_output)
    x = torch.randn(2, spec.max_length, spec.dim)
    mask = None
    if kind.capabilities.padding_mask:
        mask = torch.ones(2, spec.max_length, dtype=torch.bool)
        mask[1, spec.max_length // 2 :] = False
    try:
        returned: object = mixer.eval()(x, mask)
    except _WrongOutputError as error:
        return [str(error)]
    except Exception as error:
        problem = told(error, own, "forward")
        return [problem if issubclass(own[0], Part) else f"{problem}; it was called with {_words(x)}, of {FORWARD}"]
    where = f"{own[0].__name__}.forward" if own[0] is kind.mixer_class else f"attention with {own[0].__name__}"
    return [f"{where} returns {problem}" for problem in _output_problems(returned, x)]


def _not_begun(module: nn.Module) -> Iterator[nn.Module]:
    """Modules in `module`, itself included, whose `__init__` did not call that of `nn.Module`."""
    if "_modules" not in vars(module):
        yield module
    else:
        for child in module.children():
            yield from _not_begun(child)


def _check_output(part: nn.Module, arguments: tuple[Any, ...], returned: object) -> None:
    """Forward hook of what fills a slot.

    Raises:
        _WrongOutputError: it returned something of another form than its contract says, or numbers that are not finite.
    """
    shapes = [tuple(x.shape) for x in arguments[:2] if isinstance(x, Tensor)]
    if not shapes:
        return
    if isinstance(part, Projection):
        wanted, outputs = shapes, list(returned) if isinstance(returned, tuple) else [returned]
    elif isinstance(part, Kernel):
        wanted, outputs = shapes[:1], [returned]
    else:
        assert isinstance(part, FeatureMap)
        wanted, outputs = [(*shapes[0][:-1], part.num_features(shapes[0][-1]))], [returned]
    tensors = [y for y in outputs if isinstance(y, Tensor)]
    if len(tensors) < len(outputs) or [tuple(y.shape) for y in tensors] != wanted:
        told_shapes = " and ".join(f"a tensor of shape {shape}" for shape in wanted)
        problem = f"returns {' and '.join(map(_words, outputs))}; it must return {told_shapes}"
    elif not all(y.isfinite().all() for y in tensors):
        problem = "returns values that are not all finite"
    else:
        return
    raise _WrongOutputError(f"{type(part).__name__}.forward {problem}")


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
