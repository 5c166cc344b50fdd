"""Agreement with the formula in float64, for those that have it written out."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from reattend.attention import Mixer, naive, split_losses
from reattend.conformance.check import check
from reattend.conformance.compare import relative_error, worst
from reattend.conformance.results import CheckFailed, NotApplicable, Passed
from reattend.conformance.subject import Subject, total

LENGTH = 11
EXACT = {torch.float64: 1e-8, torch.float32: 1e-3}


@check("Outputs and all gradients are those of the naive twin, in float64")
def float64(subject: Subject) -> Passed:
    return _agrees(subject, torch.float64)


@check("Outputs and all gradients are those of the naive twin, in float32")
def float32(subject: Subject) -> Passed:
    return _agrees(subject, torch.float32)


def _agrees(subject: Subject, dtype: torch.dtype) -> Passed:
    subject = subject.shorter(LENGTH)
    mixer, x = subject.mixer(dtype), subject.tokens(dtype, batch_size=2)
    if not _has_twin(mixer):
        raise NotApplicable(f"{type(mixer).__name__} has no twin in reattend.attention.naive")
    masks = [None, subject.mask(batch_size=2)] if subject.capabilities.padding_mask else [None]
    outputs, slopes = zip(*(_errors(subject, mixer, x, mask, EXACT[dtype]) for mask in masks), strict=True)
    return Passed(f"agrees to {max(outputs):.1e}, gradients to {max(slopes):.1e}", max(*outputs, *slopes))


def _errors(subject: Subject, mixer: Mixer, x: Tensor, mask: Tensor | None, tolerance: float) -> tuple[float, float]:
    leaves = {"x": x.clone().requires_grad_()} | dict(mixer.named_parameters())
    y, losses = subject.outputs(mixer, leaves["x"], mask)
    twin = naive.forward(mixer, leaves["x"], mask)
    twin, twin_losses = split_losses(twin)
    if twin_losses.keys() != losses.keys():
        losses, twin_losses = {}, {}
    padded = " with padding" if mask is not None else ""
    error = relative_error(y, twin)
    if not error <= tolerance:
        raise CheckFailed(f"the output of the naive twin{padded}", worst(y, twin), "the formula", measured=error)
    got, wanted = (_gradients(total(*pair), leaves) for pair in ((y, losses), (twin, twin_losses)))
    # A gradient can be zero on paper, as that of a key's bias: it is measured against the others.
    floor = 0.01 * max(w.abs().max().item() for w in wanted.values() if w.numel())
    errors = {name: relative_error(got[name], w, floor) for name, w in wanted.items()}
    name = max(errors, key=lambda n: errors[n])
    if not errors[name] <= tolerance:
        raise CheckFailed(
            f"the gradients of the naive twin{padded}",
            f"that of {name} is off by {errors[name]:.2g}",
            "the formula, or a backward of its own",
            measured=errors[name],
        )
    return error, errors[name]


def _gradients(value: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    value = value + 0.0 * torch.stack([leaf.double().sum() for leaf in leaves.values()]).sum()
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))


def _has_twin(mixer: Mixer) -> bool:
    """Whether the mixer and every part of it that is not torch's are ours."""
    kinds = {type(module).__module__ for module in mixer.modules()}
    if not all(kind.startswith(("reattend.", "torch.")) for kind in kinds):
        return False
    name = type(mixer).__module__.removeprefix("reattend.attention.")
    return importlib.util.find_spec(f"{naive.__name__}.{name}") is not None
