"""`scripts/measure.py mixers`: attentions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from reattend.config.limits import Count
from reattend.efficiency.arguments import Shape, read_own, split
from reattend.efficiency.cost import Cost, costs
from reattend.efficiency.ours import FUSED, UNFUSED, Candidate, candidates, fused_softmax, unfused_softmax
from reattend.efficiency.page import Page, figure
from reattend.efficiency.scaling import Scaling, growth_cells, scaling
from reattend.efficiency.setting import prepare
from reattend.efficiency.timing import ratio
from reattend.errors import ReattendError

USAGE = """\
python scripts/measure.py [mixers] [attention=softmax,bn,sh,bn_sh] [length=4096] [dim=64] [heads=2] [batch_size=4]
    [causal=false] [grid=64x64] [rounds=10] [lengths=2048,16384] [device=auto|cpu|cuda]
    [file=results/mixers.md] [any override]
    forward and backward of whole layers, as ratios to fused softmax; with lengths also how time and memory grow"""
_COLUMNS = ("attention", "ms", "ratio (quartiles)", "MB", "ratio", "parameters")
_GROWTH_COLUMNS = ("time", "claimed", "memory")


@dataclass(frozen=True)
class Mixers(Shape):
    """What is measured: `attention` at one length, and between the two `lengths` where they are given."""

    attention: list[str] = field(default_factory=lambda: ["softmax", "bn", "sh", "bn_sh"])
    lengths: tuple[Count, Count] | None = None
    file: str | None = None

    def problems(self) -> list[str]:
        found = super().problems()
        if self.lengths and self.lengths[0] >= self.lengths[1]:
            found.append(f"lengths={self.lengths[0]},{self.lengths[1]}: the second must be the longer one")
        return found


def measure_mixers(arguments: Sequence[str]) -> Page:
    """Time, memory and parameters of each attention beside fused softmax; overrides are for the attentions only."""
    own, overrides = read_own(Mixers, arguments, USAGE)
    names = own.attention
    if not any(split(override)[0].startswith("attention.") for override in overrides):
        names = [name for name in names if name != "softmax"]  # it is there already, as what all are compared with
    layers = {FUSED: fused_softmax(own), UNFUSED: unfused_softmax(own)} | candidates(names, overrides, own)
    device = own.torch_device()
    conditions = prepare(device, overrides)
    title = f"forward + backward of a layer, ratios to {FUSED}: {own}; {conditions}"
    page = Page(title, (*_COLUMNS, *(_GROWTH_COLUMNS if own.lengths else ())), own.file)
    built = {name: layer.build() for name, layer in layers.items()}
    measured = costs(built, own.batch_size, own.length, own.dim, own.rounds, device)
    for name, layer in layers.items():
        cells = _cells(measured[name], measured[FUSED])
        raw: dict[str, Any] = {"cost": asdict(measured[name]), "growth": None}
        problem = ""
        if own.lengths:
            growth, problem = (None, "") if name == UNFUSED else _growth(layer, own.lengths, own, device)
            cells += growth_cells(growth, layer.claim)
            raw["growth"] = growth and asdict(growth)
        page.add(name, cells, raw, problem and f"attention={name}: {problem}")
    return page


def _cells(own: Cost, baseline: Cost) -> list[str]:
    return [
        figure(1e3 * own.seconds),
        str(ratio(own.rounds, baseline.rounds)),
        figure(own.bytes / 1e6),
        f"{own.bytes / baseline.bytes:.2f}",
        f"{own.parameters:,}",
    ]


def _growth(layer: Candidate, lengths: tuple[int, int], own: Shape, device: torch.device) -> tuple[Scaling | None, str]:
    """How time and memory grow, or why that cannot be measured."""
    try:
        found = scaling(
            layer.factory, layer.spec, lengths, own.batch_size, rounds=own.rounds, device=device, expected=layer.claim
        )
    except ReattendError as error:
        return None, str(error)
    return found, ""
