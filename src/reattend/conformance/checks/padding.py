"""Real tokens are blind to padding."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.conformance.check import check
from reattend.conformance.compare import relative_error, worst
from reattend.conformance.results import CheckFailed, NotApplicable, Passed
from reattend.conformance.subject import Subject, total

ADVICE = "mask padded tokens out before any sum, mean, maximum, convolution or normalisation over tokens"


@check("The content of padding reaches no real token")
def content(subject: Subject) -> Passed:
    return _content(subject, train=False)


@check(
    "In training mode too the content of padding reaches no real token",
    after=("padding.content", "determinism.training", "batch.training"),
)
def training(subject: Subject) -> Passed:
    return _content(subject, train=True)


@check("The number of padded tokens changes no real token", after=("padding.content",))
def amount(subject: Subject) -> Passed:
    subject.requires("padding_mask")
    if not subject.takes_other_lengths:
        raise NotApplicable("it works at one length only")
    mixer, x = subject.mixer(), subject.tokens()
    longest, largest = subject.spec.max_length, 0.0
    for real in sorted({max(subject.spec.prefix_tokens + 1, n) for n in (longest // 2, longest - 1)}):
        wanted, losses = subject.outputs(mixer, x[:, :real])
        for length in sorted({real, (real + longest) // 2, longest}):
            mask = (torch.arange(length) < real).expand(x.shape[0], -1)
            got, more_losses = subject.outputs(mixer, x[:, :length], mask)
            got = got[:, :real]
            errors = {"": relative_error(got, wanted)}
            errors |= {f"the loss '{n}'": relative_error(more_losses[n], loss) for n, loss in losses.items()}
            for name, error in errors.items():
                if not error <= subject.tolerance:
                    words = f"{length - real} padded tokens" if length > real else "a mask without padding"
                    raise CheckFailed(
                        f"the same for {real} real tokens with {words} as without a mask",
                        f"{name} moves by {error:.2g} of itself" if name else worst(got, wanted),
                        f"{ADVICE}; divide by the number of real tokens, not by x.shape[1]",
                        measured=error,
                    )
            largest = max(largest, *errors.values())
    return Passed(f"to {largest:.1e}", largest)


@check("No gradient flows from real tokens into padding", after=("padding.content", "gradients.finite"))
def gradient(subject: Subject) -> Passed:
    subject.requires("padding_mask")
    mixer = subject.mixer()
    for mask, words in _masks(subject):
        x = subject.tokens().requires_grad_()
        y, losses = subject.outputs(mixer, x, mask)
        value = total(_real(y, mask), losses)
        if not value.requires_grad:
            raise NotApplicable("its output has no gradient at all")
        (got,) = torch.autograd.grad(value, x, allow_unused=True)
        got = torch.zeros_like(x) if got is None else got
        leaked = relative_error(_real(got, ~mask), torch.zeros_like(x), floor=got.abs().max().item())
        if not leaked <= subject.tolerance:
            raise CheckFailed(
                f"zero gradient in padded tokens ({words})",
                f"{leaked:.2g} of the largest gradient",
                f"{ADVICE}; a masked maximum or a NaN that is masked later lets gradients through",
                measured=leaked,
            )
    return Passed()


def _content(subject: Subject, train: bool) -> Passed:
    subject.requires("padding_mask")
    x = subject.tokens()
    largest = 0.0
    for mask, words in _masks(subject):
        other = torch.where(mask[..., None], x, 30 * subject.tokens(seed=1))
        (y, losses), (y_other, losses_other) = (
            subject.outputs(subject.mixer().train(train), z, mask) for z in (x, other)
        )
        words += ", in training mode" if train else ""
        error = relative_error(_real(y_other, mask), _real(y, mask))
        if not error <= subject.tolerance:
            raise CheckFailed(
                f"real outputs that stay when the content of padding changes ({words})",
                worst(_real(y_other, mask), _real(y, mask)),
                ADVICE,
                measured=error,
            )
        for name, loss in losses.items():
            moved = relative_error(losses_other[name], loss)
            if not moved <= subject.tolerance:
                raise CheckFailed(
                    f"a loss '{name}' that stays when the content of padding changes ({words})",
                    f"it moves by {moved:.2g} of itself",
                    f"sum the loss '{name}' over real tokens only",
                    measured=moved,
                )
        largest = max(largest, error)
    return Passed(f"to {largest:.1e}", largest)


def _masks(subject: Subject) -> list[tuple[Tensor, str]]:
    return [(subject.mask(right=True), "padding on the right"), (subject.mask(), "padding anywhere")]


def _real(y: Tensor, mask: Tensor) -> Tensor:
    return y * mask[..., None]
