"""Stated operations are those that are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from reattend.attention import Mixer
from reattend.conformance.check import check
from reattend.conformance.results import CheckFailed, NotApplicable, Passed
from reattend.conformance.subject import Subject
from reattend.efficiency.flops import count_flops

BOUNDS = 0.7, 1.4


@check("Stated floating-point operations are those that torch counts, about", once=True)
def flops(subject: Subject) -> Passed:
    subject = subject.longer()
    mixer, length = subject.mixer(torch.float32), subject.spec.max_length
    try:
        stated = mixer.flops(length)
    except NotImplementedError:
        raise NotApplicable("it does not state them (method flops)") from None
    counted = count_flops(mixer, {"x": subject.tokens(torch.float32, batch_size=1)})
    unseen = _not_counted(subject, mixer)
    ratio = stated / counted if counted else float("inf")
    if ratio > BOUNDS[1] and unseen:
        raise NotApplicable(f"torch cannot count {', '.join(unseen)}; stated {stated:,} for {length} tokens")
    if not BOUNDS[0] <= ratio <= BOUNDS[1]:
        raise CheckFailed(
            f"about {counted:,} for {length} tokens, as counted by torch.utils.flop_counter",
            f"{stated:,}, {ratio:.2g} times as many",
            "2 per multiply-add, forward only, one sample, all heads, linear layers included",
            method="flops",
            measured=ratio,
        )
    return Passed(f"stated {stated:,}, counted {counted:,} for {length} tokens", ratio)


class _Operators(TorchDispatchMode):
    """Names of the operators that run and have no count: those of others, and torch's own that attend in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the operator after noting its name."""
        operator = getattr(func, "overloadpacket", func)
        name = str(operator)
        own = not name.startswith(("aten.", "prim", "profiler.")) or "attention" in name
        if own and operator not in flop_registry:
            self.names.add(name)
        return func(*args, **(kwargs or {}))


def _not_counted(subject: Subject, mixer: Mixer) -> list[str]:
    with _Operators() as operators, torch.no_grad():
        subject.outputs(mixer, subject.tokens(torch.float32, batch_size=1))
    return sorted(operators.names)
