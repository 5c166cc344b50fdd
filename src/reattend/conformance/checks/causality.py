"""A causal mixer does not see the future, and others do not claim to be causal."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from reattend.attention import MixerSpec
from reattend.conformance.check import check
from reattend.conformance.compare import relative_error, same_bits, worst
from reattend.conformance.results import CheckFailed, NotApplicable, Passed
from reattend.conformance.subject import LONGEST, Subject


@check("Later tokens do not change earlier outputs by a bit")
def future(subject: Subject) -> Passed:
    return _blind(subject, train=False)


@check(
    "In training mode too later tokens do not change earlier outputs by a bit",
    after=("causality.future", "determinism.training", "batch.training"),
)
def training(subject: Subject) -> Passed:
    return _blind(subject, train=True)


@check("The first tokens alone give the outputs that they have in a longer sequence", after=("causality.future",))
def beginning(subject: Subject) -> Passed:
    subject.requires_causal()
    subject.requires("blind_to_future")
    if not subject.takes_other_lengths:
        raise NotApplicable("it works at one length only")
    subject = subject.longer()
    mixer, x = subject.mixer(), subject.tokens()
    whole, _ = subject.outputs(mixer, x)
    largest = 0.0
    for length in subject.lengths[:-1]:
        alone, _ = subject.outputs(mixer, x[:, :length])
        error = relative_error(alone, whole[:, :length])
        if not error <= subject.tolerance:
            raise CheckFailed(
                f"the first {length} of {x.shape[1]} tokens to give the same outputs alone",
                worst(alone, whole[:, :length]),
                "anything that depends on the number of tokens (x.shape[1]): it is part of the future",
                measured=error,
            )
        largest = max(largest, error)
    return Passed(f"to {largest:.1e}", largest)


@check("A mixer that has no causal form refuses to be built causal", once=True)
def refusal(subject: Subject) -> Passed:
    if subject.capabilities.causal:
        raise NotApplicable("it has a causal form")
    causal: MixerSpec = replace(subject.spec, causal=True)
    if not subject.factory.problems(causal):
        raise CheckFailed(
            "a problem for MixerSpec(causal=True), since capabilities do not claim causal",
            "none: a language model would be built with it",
            "return super().problems(spec, **options) + your own problems",
            method="problems",
        )
    return Passed()


def _blind(subject: Subject, train: bool) -> Passed:
    subject.requires_causal()
    subject.requires("blind_to_future")
    places = (subject, subject.longer(), subject.longer(LONGEST, batch_size=1))
    for at in places:
        _blind_at(at, train)
    return Passed(f"up to {places[-1].spec.max_length} tokens")


def _blind_at(subject: Subject, train: bool) -> None:
    x = subject.tokens(torch.float32)
    length = x.shape[1]
    for mask in (None, subject.mask()) if subject.capabilities.padding_mask else (None,):
        y = _output(subject, x, mask, train)
        for cut in sorted({max(1, subject.spec.prefix_tokens), length // 2, 64, length - 1}):
            if not 0 < cut < length:
                continue
            other = torch.cat([x[:, :cut], 30 * subject.tokens(torch.float32, seed=1)[:, cut:]], dim=1)
            changed = _output(subject, other, mask, train)
            if same_bits(changed[:, :cut], y[:, :cut]):
                continue
            error = relative_error(changed[:, :cut], y[:, :cut])
            raise CheckFailed(
                f"outputs before token {cut} of {length} that do not move when the tokens from there on change"
                + (", in training mode" if train else ""),
                worst(changed[:, :cut], y[:, :cut]),
                _advice(subject, error),
                measured=error,
            )


def _output(subject: Subject, x: Tensor, mask: Tensor | None, train: bool) -> Tensor:
    """The output of a new mixer, since a call in training mode may leave something behind."""
    return subject.outputs(subject.mixer(torch.float32).train(train), x, mask)[0]


def _advice(subject: Subject, error: float) -> str:
    if error < 1e-4:
        return (
            "the size suggests rounding: sums that are taken over all tokens and subtracted, or scales of the whole "
            "sequence. Sum over the past only, or state blind_to_future=False with its reason in capabilities"
        )
    plain = Subject(subject.factory, replace(subject.spec, causal=False), subject.batch_size)
    try:
        x = subject.tokens(torch.float32)
        same = torch.equal(
            plain.outputs(plain.mixer(torch.float32), x)[0], subject.outputs(subject.mixer(torch.float32), x)[0]
        )
    except Exception:
        same = False
    if same:
        return (
            "it gives the same with spec.causal=False, so spec.causal is never read: claim causal=False, or mask j > i"
        )
    return "mask keys j > i before normalising; statistics, pooling and convolutions over tokens see the past only"
