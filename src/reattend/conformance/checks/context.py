"""Keys and values from another sequence."""

from __future__ import annotations

import torch

from reattend.conformance.check import check
from reattend.conformance.compare import relative_error, worst
from reattend.conformance.results import CheckFailed, NotApplicable, Passed
from reattend.conformance.subject import Subject


@check("Tokens of another sequence are attended to, of any length, without its padding")
def attended(subject: Subject) -> Passed:
    subject.requires("context")
    subject.requires_causal(False)
    if not subject.takes_other_lengths:
        raise NotApplicable("it works at one length only")
    mixer, x = subject.mixer(), subject.tokens()
    for length in (max(2, subject.spec.max_length // 2), subject.spec.max_length):
        context = subject.tokens(length=length, seed=1)
        y, _ = subject.outputs(mixer, x, None, context)
        if y.shape != x.shape:
            raise CheckFailed(
                f"a tensor of shape {tuple(x.shape)} for a context of {length} tokens",
                f"{tuple(y.shape)}",
                "one output for each token of x, not of the context",
            )
        if torch.equal(y, subject.outputs(mixer, x, None, context.flip(0))[0]):
            raise CheckFailed(
                "an output that depends on the context",
                "the same for another context",
                "take keys and values from the context, or claim context=False in capabilities",
            )
        mask = subject.mask(length)
        masked, _ = subject.outputs(mixer, x, None, context, mask)
        other = torch.where(mask[..., None], context, 30 * subject.tokens(length=length, seed=2))
        moved, _ = subject.outputs(mixer, x, None, other, mask)
        error = relative_error(moved, masked)
        if not error <= subject.tolerance:
            raise CheckFailed(
                "outputs that stay when the content of the context's padding changes",
                worst(moved, masked),
                "mask keys with context_mask where a context is given",
                measured=error,
            )
    return Passed()
