"""The same input gives the same output."""

from __future__ import annotations

import torch

from reattend.conformance.check import check
from reattend.conformance.compare import relative_error, same_bits
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject


@check("In evaluation mode the same input gives the same output, to the bit")
def evaluation(subject: Subject) -> Passed:
    mixer, x = subject.mixer(torch.float32), subject.tokens(torch.float32)
    mask = subject.usual_mask(x)
    outputs = [subject.outputs(mixer, x, mask, seed=seed)[0] for seed in (0, 1, 2)]
    for other in outputs[1:]:
        if not same_bits(other, outputs[0]):
            error = relative_error(other, outputs[0])
            raise CheckFailed(
                "one output",
                f"a relative difference of {error:.2g} between two calls",
                "random numbers in evaluation mode: draw them in __init__ into a buffer, drop only if self.training",
                measured=error,
            )
    return Passed()


@check("In training mode the same input and seed give the same output, to the bit")
def training(subject: Subject) -> Passed:
    x = subject.tokens(torch.float32)
    mask = subject.usual_mask(x)
    first, second = (subject.outputs(subject.mixer(torch.float32).train(), x, mask)[0] for _ in range(2))
    if not same_bits(second, first):
        error = relative_error(second, first)
        raise CheckFailed(
            "one output from one seed",
            f"a relative difference of {error:.2g}",
            "random numbers must come from torch's own stream: no numpy, random, time or id()",
            measured=error,
        )
    return Passed()
