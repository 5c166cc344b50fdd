"""Samples do not see each other."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from reattend.attention import Mixer
from reattend.conformance.check import check
from reattend.conformance.compare import relative_error, worst
from reattend.conformance.results import CheckFailed, NotApplicable, Passed
from reattend.conformance.subject import Subject


@check("A sample's output does not depend on the other samples")
def evaluation(subject: Subject) -> Passed:
    mixer, x = subject.mixer(), subject.tokens()
    mask = subject.usual_mask(x)
    wanted, losses = subject.outputs(mixer, x, mask)
    for alone in range(x.shape[0]):
        one = slice(alone, alone + 1)
        got, losses_alone = subject.outputs(mixer, x[one], None if mask is None else mask[one])
        errors = {"": relative_error(got, wanted[one])}
        errors |= {f"the loss '{n}'": relative_error(losses_alone[n], loss[one]) for n, loss in losses.items()}
        for name, error in errors.items():
            if not error <= subject.tolerance:
                raise CheckFailed(
                    f"sample {alone} of {x.shape[0]} to give the same alone",
                    f"{name} moves by {error:.2g} of itself" if name else worst(got, wanted[one]),
                    _advice(mixer),
                    measured=error,
                )
    return Passed()


@check(
    "In training mode too a sample's output does not depend on the others",
    after=("batch.evaluation", "determinism.training"),
)
def training(subject: Subject) -> Passed:
    if "batch" in subject.capabilities.reasons:
        raise NotApplicable(subject.capabilities.reasons["batch"])
    if subject.batch_size < 2:
        raise NotApplicable("needs batch_size=2 at least")
    x = subject.tokens()
    other = torch.cat([x[:1], 3 * subject.tokens(seed=1)[1:] + 1])
    mask = subject.usual_mask(x)
    mixer = subject.mixer()
    wanted, got = (subject.outputs(subject.mixer().train(), z, mask)[0][:1] for z in (x, other))
    error = relative_error(got, wanted)
    if not error <= subject.tolerance:
        raise CheckFailed(
            "the first sample's output to stay when the others change",
            worst(got, wanted),
            _advice(mixer),
            measured=error,
        )
    return Passed()


def _advice(mixer: Mixer) -> str:
    names = [name for name, module in mixer.named_modules() if isinstance(module, _BatchNorm)]
    if names:
        return f"batch normalisation in {', '.join(names)}: its statistics mix samples, and padding with real tokens"
    return "means, sums, softmax or reshaping over dimension 0"
