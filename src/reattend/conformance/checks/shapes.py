"""Outputs have the shapes that backbones count on."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from reattend.conformance.check import check
from reattend.conformance.compare import not_finite, relative_error
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject


@check("Outputs have the shape of the inputs, losses one entry per sample")
def outputs(subject: Subject) -> Passed:
    mixer = subject.mixer(torch.float32)
    for length, batch_size in itertools.product(subject.lengths, (1, subject.batch_size)):
        x = subject.tokens(torch.float32, length=length, batch_size=batch_size)
        with subject.reproducible():
            returned: object = mixer(x, subject.usual_mask(x))
        _check_form(returned, x)
    return Passed(f"{_words(subject.lengths)} tokens, batches of 1 and {subject.batch_size}")


@check("Inputs may be views with any strides")
def strides(subject: Subject) -> Passed:
    mixer, x = subject.mixer(), subject.tokens()
    mask = subject.usual_mask(x)
    wanted, _ = subject.outputs(mixer, x, mask)
    try:
        got, _ = subject.outputs(mixer, x.transpose(0, 1).contiguous().transpose(0, 1), mask)
    except RuntimeError as error:
        raise CheckFailed(
            "the same output for a transposed view", " ".join(str(error).split()), "reshape() in place of view()"
        ) from error
    if relative_error(got, wanted) > subject.tolerance:
        raise CheckFailed(
            "the same output for a transposed view",
            f"a relative difference of {relative_error(got, wanted):.2g}",
            "reading of memory regardless of strides (as_strided, data_ptr)",
        )
    return Passed()


def _check_form(returned: object, x: Tensor) -> None:
    shape = tuple(x.shape)
    wanted = f"a tensor of shape {shape} for x of that shape, or that and a dictionary of losses of shape {shape[:1]}"
    y, losses = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(y, Tensor) or y.shape != x.shape:
        raise CheckFailed(wanted, _form(y), "what it returns")
    if not isinstance(losses, dict):
        raise CheckFailed(wanted, f"{_form(losses)} beside the output", "what it returns beside the output")
    for name, loss in losses.items():
        if not isinstance(loss, Tensor) or loss.shape != x.shape[:1]:
            advice = (
                f"reduce '{name}' over tokens, heads and features, and keep the batch: a mean over it is taken later"
            )
            raise CheckFailed(wanted, f"the loss '{name}' as {_form(loss)}", advice)
    wrong = not_finite([("the output", y), *((f"the loss '{name}'", loss) for name, loss in losses.items())])
    if wrong:
        raise CheckFailed(
            "finite values for normally distributed tokens", wrong, f"{shape[1]} tokens, batch {shape[0]}"
        )


def _form(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _words(numbers: list[int]) -> str:
    return " or ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))
