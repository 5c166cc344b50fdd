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
from reattend.efficiency.operator_flops import formulas

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
    operators = _operators(subject, mixer)
    ratio = stated / counted if counted else float("inf")
    if ratio > BOUNDS[1] and operators.names:
        unseen = ", ".join(sorted(operators.names))
        raise NotApplicable(f"torch cannot count {unseen}; stated {stated:,} for {length} tokens")
    if not BOUNDS[0] * (counted - operators.hidden) <= stated <= BOUNDS[1] * counted:
        raise CheckFailed(
            f"about {counted:,} for {length} tokens, as counted by torch.utils.flop_counter",
            f"{stated:,}, {ratio:.2g} times as many",
            "2 per multiply-add, forward only, one sample, all heads, linear layers included",
            method="flops",
            measured=ratio,
        )
    hidden = f", {operators.hidden:,} of them for pairs that a mask hides" if operators.hidden else ""
    return Passed(f"stated {stated:,}, counted {counted:,}{hidden} for {length} tokens", ratio)


class _Operators(TorchDispatchMode):
    """What a count is short of or has too much.

    Attributes:
        names: operators that run and have no count: those of others, and torch's own that attend in one call.
        hidden: operations of fused attention for pairs that its mask hides: a pattern is computed in whole blocks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.hidden = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the operator after noting what it is."""
        operator = getattr(func, "overloadpacket", func)
        name = str(operator)
        own = not name.startswith(("aten.", "prim", "profiler.")) or "attention" in name
        if own and operator not in flop_registry and operator not in formulas():
            self.names.add(name)
        mask = (kwargs or {}).get("attn_mask")
        if operator is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu and mask is not None:
            pairs = mask.isneginf().expand(*args[0].shape[:-1], args[1].shape[-2])
            self.hidden += 2 * int(pairs.sum()) * (args[0].shape[-1] + args[2].shape[-1])
        return func(*args, **(kwargs or {}))


def _operators(subject: Subject, mixer: Mixer) -> _Operators:
    operators = _Operators()
    with operators, torch.no_grad():
        subject.outputs(mixer, subject.tokens(torch.float32, batch_size=1))
    return operators
