"""How time and memory of a layer grow with length."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from reattend.attention import Mixer, MixerSpec
from reattend.efficiency.cost import forward_backward
from reattend.efficiency.memory import peak_bytes
from reattend.errors import ReattendError

CLAIM_TOLERANCE = 0.25


@dataclass(frozen=True)
class Scaling:
    """Forward and backward of one layer at two lengths.

    Attributes:
        lengths: the two numbers of tokens, the shorter first.
        seconds: median time at each.
        bytes: peak memory above the inputs at each.
        time_exponent: p of time ~ N^p between them, the median over rounds.
        memory_exponent: p of memory ~ N^p between them.
    """

    lengths: tuple[int, int]
    seconds: tuple[float, float]
    bytes: tuple[int, int]
    time_exponent: float
    memory_exponent: float


def exponent(lengths: tuple[int, int], values: tuple[float, float]) -> float:
    """p with values ~ lengths^p: log(v2 / v1) / log(n2 / n1)."""
    return math.log(values[1] / values[0]) / math.log(lengths[1] / lengths[0])


def scaling(
    factory: Callable[[MixerSpec], Mixer],
    spec: MixerSpec,
    lengths: tuple[int, int] = (2048, 16384),
    batch_size: int = 4,
    *,
    rounds: int = 3,
    device: torch.device | str = "cpu",
    expected: float = 1.0,
) -> Scaling:
    """Measures what `factory` builds for `spec` at two lengths, in alternating rounds after one to warm up.

    Args:
        factory: builds the mixer.
        spec: where; its length and grid are replaced, a grid by the squarest of as many extents.
        lengths: the two numbers of tokens, prefix tokens included, the shorter first.
        batch_size: sequences at once.
        rounds: how often each length is timed.
        device: where it runs.
        expected: exponent that memory may grow by; claims of time bound it.

    Raises:
        ValueError: lengths that do not grow.
        ReattendError: with `expected` the longer one would take over half of the machine's memory.
    """
    short, long = lengths
    if not 0 < short < long:
        raise ValueError(f"the exponent is taken between a length and a longer one, got {short} and {long}")
    calls = []
    for length in lengths:
        torch.manual_seed(0)
        mixer = factory(at_length(spec, length))
        calls.append(forward_backward(mixer, batch_size, length, spec.dim, device))
    peaks: list[int] = []
    for call in calls:
        if peaks:
            _refuse_too_large(peaks[0] * (long / short) ** expected, long)
        call()
        peaks.append(peak_bytes(call, device))
    seconds: list[tuple[float, float]] = [(_seconds(calls[0]), _seconds(calls[1])) for _ in range(rounds)]
    return Scaling(
        lengths=(short, long),
        seconds=(statistics.median(s for s, _ in seconds), statistics.median(s for _, s in seconds)),
        bytes=(peaks[0], peaks[1]),
        time_exponent=statistics.median(exponent(lengths, pair) for pair in seconds),
        memory_exponent=exponent(lengths, (peaks[0], peaks[1])),
    )


def growth_cells(measured: Scaling | None, claimed: float) -> list[str]:
    """Measured and claimed exponent of time, and measured exponent of memory."""
    if measured is None:
        return ["", f"N^{claimed:g}", ""]
    above = ", above its claim" if exceeds(measured.time_exponent, claimed) else ""
    return [f"N^{measured.time_exponent:.2f}{above}", f"N^{claimed:g}", f"N^{measured.memory_exponent:.2f}"]


def exceeds(measured: float, claimed: float) -> bool:
    """Whether time grows faster than claimed, by more than a measurement between two lengths may be off."""
    return measured > claimed + CLAIM_TOLERANCE


def at_length(spec: MixerSpec, length: int) -> MixerSpec:
    """The same place for `length` tokens, prefix tokens included."""
    grid = None if spec.grid is None else squarest(length - spec.prefix_tokens, len(spec.grid))
    return replace(spec, max_length=length, grid=grid)


def squarest(length: int, dimensions: int) -> tuple[int, ...]:
    """Extents of a grid of `length` tokens, each the largest divisor up to the root of what is left."""
    if dimensions == 1:
        return (length,)
    side = math.floor(length ** (1 / dimensions) + 1e-9)
    first = next(extent for extent in range(side, 0, -1) if length % extent == 0)
    return (first, *squarest(length // first, dimensions - 1))


def _refuse_too_large(wanted: float, length: int) -> None:
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > installed / 2:
        raise ReattendError(
            f"{length} tokens would take about {wanted / 1e9:.0f} GB, over half of the {installed / 1e9:.0f} GB here"
        )


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
