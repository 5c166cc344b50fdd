"""Decoding token by token is the causal parallel form."""

from __future__ import annotations

import torch
from torch import Tensor

from reattend.attention.contract import Mixer, State
from reattend.conformance.check import check
from reattend.conformance.compare import relative_error, worst
from reattend.conformance.results import CheckFailed, Passed
from reattend.conformance.subject import Subject

METHODS = ("declarations.methods",)


@check("Step by step gives what the parallel form gives", after=METHODS)
def parallel(subject: Subject) -> Passed:
    _requires(subject)
    subject = subject.longer()
    mixer, x = subject.mixer(), subject.tokens()
    wanted, _ = subject.outputs(mixer, x)
    got = torch.stack([y for y, _ in _steps(subject, mixer, x)], dim=1)
    if got.shape != wanted.shape:
        raise CheckFailed(
            f"step to return a tensor of shape {(x.shape[0], x.shape[2])}",
            f"{(got.shape[0], *got.shape[2:])}",
            "its first return value",
            method="step",
        )
    error = relative_error(got, wanted)
    if not error <= 10 * subject.tolerance:
        token = int(((got - wanted).abs().amax((0, 2)) > 10 * subject.tolerance * wanted.abs().max()).nonzero()[0])
        raise CheckFailed(
            "the outputs of forward on the whole sequence",
            f"step first differs at token {token}; {worst(got, wanted)}",
            "compare with forward: the same scale, positions from 0, and the own token included in what it sees",
            method="step",
            measured=error,
        )
    return Passed(f"to {error:.1e}", error)


@check("The state of decoding is constant or grows as stated", after=METHODS)
def state_size(subject: Subject) -> Passed:
    _requires(subject)
    subject = subject.longer()
    mixer, x = subject.mixer(), subject.tokens()
    with subject.reproducible():
        sizes = [_size(mixer.initial_state(x.shape[0]))]
    sizes += [_size(state) for _, state in _steps(subject, mixer, x)]
    per_sample = [size // x.shape[0] for size in sizes]
    if subject.capabilities.constant_state and len(set(per_sample)) > 1:
        raise CheckFailed(
            "a state of one size, since capabilities claim constant_state=True",
            f"{per_sample[0]} numbers per sample at first, {per_sample[1]} after one token, {per_sample[-1]} after "
            f"{x.shape[1]}",
            "claim constant_state=False in capabilities, or keep sums in place of past tokens",
            method="step",
            measured=float(per_sample[-1]),
        )
    grows = per_sample[-1] != per_sample[len(per_sample) // 2]
    words = f"{per_sample[-1]} numbers per sample after {x.shape[1]} tokens"
    if grows or subject.capabilities.constant_state:
        return Passed(f"{words}, {'growing' if grows else 'constant'} as stated", float(per_sample[-1]))
    return Passed(f"{words}; it has stopped growing there", float(per_sample[-1]))


@check("A step leaves the state that it was given as it was", after=METHODS)
def pure(subject: Subject) -> Passed:
    _requires(subject)
    mixer, x = subject.mixer(), subject.tokens()
    with subject.reproducible(), torch.no_grad():
        _, state = mixer.step(x[:, 0], mixer.initial_state(x.shape[0]))
        _check_state(state, x.shape[0])
        before = {name: value.clone() for name, value in state.items()}
        mixer.step(x[:, 1], state)
    changed = [name for name, value in before.items() if not torch.equal(value, state[name])]
    if changed or state.keys() != before.keys():
        raise CheckFailed(
            "a new state beside the old one, so that two continuations can start from it",
            f"{', '.join(changed) or 'its keys'} changed in place",
            "return new tensors: no +=, no index assignment, no append to the state",
            method="step",
        )
    return Passed()


def _requires(subject: Subject) -> None:
    subject.requires("decoding")
    subject.requires_causal()


def _steps(subject: Subject, mixer: Mixer, x: Tensor) -> list[tuple[Tensor, State]]:
    found = []
    with subject.reproducible(), torch.no_grad():
        state = mixer.initial_state(x.shape[0])
        _check_state(state, x.shape[0])
        for t in range(x.shape[1]):
            y, state = mixer.step(x[:, t], state)
            found.append((y, state))
    return found


def _check_state(state: object, batch_size: int) -> None:
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        kind = f"{type(state).__name__}" + (" of other things" if isinstance(state, dict) else "")
        raise CheckFailed("a state that is a dictionary of tensors", kind, "the state", method="initial_state")
    wrong = [f"{name} {tuple(value.shape)}" for name, value in state.items() if value.shape[:1] != (batch_size,)]
    if wrong:
        raise CheckFailed(
            f"the batch of {batch_size} in front in every tensor of the state",
            ", ".join(wrong),
            "put the batch first: beams are reordered along it; a position is a tensor of shape (batch,)",
            method="initial_state",
        )


def _size(state: State) -> int:
    return sum(value.numel() for value in state.values())
