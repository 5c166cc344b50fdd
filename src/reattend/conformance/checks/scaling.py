"""Time and memory grow with length as stated."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from reattend.attention import Mixer, MixerSpec
from reattend.conformance.check import check
from reattend.conformance.results import CheckFailed, NotApplicable, Passed
from reattend.conformance.subject import Subject
from reattend.efficiency.scaling import Scaling, exceeds, scaling
from reattend.errors import ReattendError

LENGTHS = 1024, 4096
HEAD_DIM = 32


@check("Time grows with length no faster than stated", costly=True, once=True)
def seconds(subject: Subject) -> Passed:
    found = _measured(subject)
    words = f"N^{found.time_exponent:.2f} from {1e3 * found.seconds[0]:.1f} ms to {1e3 * found.seconds[1]:.1f} ms"
    return _compared(subject, found.time_exponent, words, "time")


@check("Memory grows with length no faster than time is stated to", costly=True, once=True)
def memory(subject: Subject) -> Passed:
    found = _measured(subject)
    words = f"N^{found.memory_exponent:.2f} from {found.bytes[0] / 1e6:.1f} MB to {found.bytes[1] / 1e6:.1f} MB"
    return _compared(subject, found.memory_exponent, words, "memory")


def _compared(subject: Subject, exponent: float, words: str, what: str) -> Passed:
    claimed = subject.capabilities.time_exponent
    words += f" between {LENGTHS[0]} and {LENGTHS[1]} tokens, forward and backward without dropout"
    if exceeds(exponent, claimed):
        raise CheckFailed(
            f"{what} of N^{claimed:g} at most, as time_exponent in capabilities says",
            words,
            "tensors of tokens by tokens, and loops over tokens; or claim the larger exponent",
            measured=exponent,
        )
    return Passed(f"{words}; claimed N^{claimed:g}", exponent)


@cache
def _measured(subject: Subject) -> Scaling:
    spec = replace(subject.spec, dim=HEAD_DIM * subject.spec.num_heads)

    def build(place: MixerSpec) -> Mixer:
        # Attention dropout takes torch's fused attention off its fast path, which is of no interest here.
        return subject.factory(place).eval()

    try:
        return scaling(build, spec, LENGTHS, 1, expected=subject.capabilities.time_exponent)
    except ReattendError as error:
        raise NotApplicable(str(error)) from error
