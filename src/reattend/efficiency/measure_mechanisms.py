"""`scripts/measure.py mechanisms`: what every attention can do, how exactly, and at what cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from reattend.config.limits import Count
from reattend.config.resolve import plain_attentions
from reattend.efficiency.arguments import Shape, read_own
from reattend.efficiency.mechanisms import COLUMNS, measure
from reattend.efficiency.page import Page
from reattend.efficiency.peers import PEERS
from reattend.efficiency.setting import prepare

USAGE = """\
python scripts/measure.py mechanisms [attention=all|softmax,...] [file=results/mechanisms.md] [lengths=2048,16384]
    [length=4096] [dim=64] [heads=2] [batch_size=4] [rounds=5] [device=auto|cpu|cuda] [any override]
    agreement with the naive twins, capabilities, growth, and ratios to fused softmax and to packages. The file grows
    row by row: attention=all measures those that it lacks, a named attention is measured again"""


@dataclass(frozen=True)
class Mechanisms(Shape):
    """What is measured, in both forms where `causal` is left out; growth between the two `lengths`."""

    rounds: Count = 5
    attention: list[str] = field(default_factory=lambda: ["all"])
    lengths: tuple[Count, Count] = (2048, 16384)
    file: str = "results/mechanisms.md"

    @property
    def quadratic_lengths(self) -> tuple[int, int]:
        """Shorter ones for attentions whose weights at the long one would fill the memory."""
        return self.lengths[0] // 2, self.lengths[1] // 4

    def problems(self) -> list[str]:
        found = super().problems()
        if self.quadratic_lengths[0] < 1 or self.quadratic_lengths[0] >= self.quadratic_lengths[1]:
            found.append(f"lengths={self.lengths[0]},{self.lengths[1]}: the second must be over twice the first")
        return found


def measure_mechanisms(arguments: Sequence[str]) -> Page:
    """One row for each attention, written to the file as it is measured."""
    own, overrides = read_own(Mechanisms, arguments, USAGE)
    conditions = prepare(own.torch_device(), overrides)
    page = Page(
        f"forward + backward of a layer: {replace(own, causal=None)}; growth from {_words(own.lengths)} tokens, of"
        f" what claims N^2 from {_words(own.quadratic_lengths)}; medians of {own.rounds} rounds; {conditions}",
        ("attention", *COLUMNS),
        own.file,
    )
    for peer in PEERS:
        if missing := peer.missing():
            page.note(missing)
    everything = [name for name in plain_attentions() if name not in page.rows]
    for name in everything if own.attention == ["all"] else own.attention:
        start = time.perf_counter()
        found = measure(name, overrides, own, own.lengths, own.quadratic_lengths)
        page.failed |= found.failed
        page.add(name, found.cells(), asdict(found), found.problem and f"{name}: {found.problem}")
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return page


def _words(lengths: tuple[int, int]) -> str:
    return f"{lengths[0]} to {lengths[1]}"
