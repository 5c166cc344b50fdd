"""A call leaves nothing behind."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reattend.attention import Mixer
from reattend.conformance.check import check
from reattend.conformance.compare import same_bits
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject

ADVICE = (
    "return what later code needs, or compute it again: state between calls breaks encoders that are called twice, "
    "checkpointing, FSDP and compilation"
)


@check("A call in evaluation mode changes nothing in the module, its class or its file")
def state(subject: Subject) -> Passed:
    mixer, x = subject.mixer(torch.float32), subject.tokens(torch.float32)
    before = _snapshot(mixer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        stream = torch.get_rng_state()
        mixer(x, subject.usual_mask(x))
        stream_moved = not torch.equal(stream, torch.get_rng_state())
    after = _snapshot(mixer)
    changed = sorted(name for name in before.keys() | after.keys() if not _same(before.get(name), after.get(name)))
    changed += ["torch's random stream"] if stream_moved else []
    if changed:
        raise CheckFailed("nothing to change", f"{', '.join(changed[:5])} changed", ADVICE)
    return Passed()


@check("A call leaves its inputs as they were")
def inputs(subject: Subject) -> Passed:
    mixer, x = subject.mixer(torch.float32), subject.tokens(torch.float32)
    mask = subject.usual_mask(x)
    given = [(name, t, t.clone()) for name, t in (("x", x), ("padding_mask", mask)) if t is not None]
    with torch.no_grad():
        subject.outputs(mixer, x, mask)
    changed = [name for name, now, before in given if not torch.equal(now, before)]
    if changed:
        raise CheckFailed(
            "inputs as before", f"{' and '.join(changed)} changed", "operations in place (+=, masked_fill_)"
        )
    return Passed()


@check("A call between two equal calls does not change the second", after=("isolation.state",))
def interleaved(subject: Subject) -> Passed:
    mixer, x = subject.mixer(torch.float32), subject.tokens(torch.float32)
    length = subject.lengths[len(subject.lengths) // 2]
    first, _ = subject.outputs(mixer, x, subject.usual_mask(x))
    subject.outputs(mixer, 3 * subject.tokens(torch.float32, seed=1, length=length))
    second, _ = subject.outputs(mixer, x, subject.usual_mask(x))
    if not same_bits(second, first):
        raise CheckFailed("the output of the first call", "another", ADVICE)
    return Passed()


def _snapshot(mixer: Mixer) -> dict[str, Any]:
    """Values of everything that a call might write to, by a name for people."""
    found: dict[str, Any] = {}
    for path, module in mixer.named_modules():
        held = dict(vars(module)) | module._parameters | module._buffers
        found |= {f"self.{path}.{name}".replace("..", "."): _frozen(value) for name, value in held.items()}
    for kind in dict.fromkeys(type(module) for module in mixer.modules()):
        if kind.__module__.partition(".")[0] == "torch":
            continue
        found |= {f"{kind.__name__}.{name}": _frozen(value) for name, value in vars(kind).items() if _is_data(value)}
        held = vars(sys.modules.get(kind.__module__, object))
        found |= {f"{kind.__module__}.{name}": _frozen(value) for name, value in held.items() if _is_data(value)}
    return found


def _is_data(value: object) -> bool:
    return isinstance(value, int | float | str | list | dict | set | Tensor)


def _frozen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _frozen(item) for key, item in value.items() if isinstance(item, int | float | str | Tensor)} | {
            "__len__": len(value)
        }
    if isinstance(value, list | tuple | set):
        return [_frozen(item) for item in value if isinstance(item, int | float | str | Tensor)], len(value)
    if isinstance(value, int | float | str | bool) or value is None:
        return value
    return id(value) if inspect.isroutine(value) or not isinstance(value, torch.nn.Module) else None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same_bits(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    return bool(one == other)
