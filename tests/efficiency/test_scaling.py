"""How time and memory grow, on a layer whose growth is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import Capabilities, Mixer, MixerSpec
from reattend.efficiency.scaling import Scaling, at_length, exceeds, exponent, growth_cells, scaling, squarest
from reattend.errors import ReattendError


class Pairs(Mixer):
    """Holds (B, N, N) numbers for a moment, or as many as tokens."""

    def __init__(self, spec: MixerSpec, *, quadratic: bool) -> None:
        super().__init__()
        self.quadratic = quadratic
        self.weight = torch.nn.Parameter(torch.ones(()))

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities()

    def forward(self, x: Tensor, *masks: Any) -> Tensor:
        length = x.shape[1]
        torch.empty(x.shape[0], length, length if self.quadratic else 64)
        return x * self.weight


def test_the_exponent_of_a_power_law() -> None:
    assert exponent((2048, 16384), (3.0, 3.0 * 8**1.5)) == pytest.approx(1.5)
    assert exponent((10, 20), (7.0, 7.0)) == 0.0
    assert exponent((100, 1000), (1.0, 100.0)) == pytest.approx(2.0)


@pytest.mark.parametrize(("quadratic", "wanted"), [(True, 2.0), (False, 1.0)])
def test_memory_grows_as_the_layer_does(quadratic: bool, wanted: float) -> None:
    spec = MixerSpec(dim=1, num_heads=1, max_length=1)
    found = scaling(lambda s: Pairs(s, quadratic=quadratic), spec, (512, 2048), 2, rounds=1)
    assert found.memory_exponent == pytest.approx(wanted, abs=0.02)
    assert found.bytes[0] >= 2 * 512 * (512 if quadratic else 64) * 4
    assert math.isfinite(found.time_exponent)
    assert found.lengths == (512, 2048)
    assert min(found.seconds) > 0


def test_the_layer_is_built_for_each_length() -> None:
    built: list[MixerSpec] = []

    def factory(spec: MixerSpec) -> Mixer:
        built.append(spec)
        return Pairs(spec, quadratic=False)

    scaling(factory, MixerSpec(dim=1, num_heads=1, max_length=7, grid=(7, 1), causal=False), (16, 64), 1, rounds=1)
    assert [(spec.max_length, spec.grid) for spec in built] == [(16, (4, 4)), (64, (8, 8))]


def test_what_would_fill_the_memory_is_not_run() -> None:
    lengths: list[int] = []

    class Counted(Pairs):
        def forward(self, x: Tensor, *masks: Any) -> Tensor:
            lengths.append(x.shape[1])
            return super().forward(x, *masks)

    spec = MixerSpec(dim=1, num_heads=1, max_length=1)
    with pytest.raises(ReattendError, match=r"4096 tokens would take about \d+ GB, over half of"):
        scaling(lambda s: Counted(s, quadratic=False), spec, (4, 4096), 1, expected=5.0)
    assert set(lengths) == {4}


@pytest.mark.parametrize("lengths", [(8, 8), (16, 8), (0, 8)])
def test_lengths_must_grow(lengths: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"got {lengths[0]} and {lengths[1]}"):
        scaling(lambda s: Pairs(s, quadratic=False), MixerSpec(dim=1, num_heads=1, max_length=1), lengths)


@pytest.mark.parametrize(
    ("length", "dimensions", "wanted"),
    [
        (4096, 2, (64, 64)),
        (2048, 2, (32, 64)),
        (13, 2, (1, 13)),
        (4096, 3, (16, 16, 16)),
        (9, 1, (9,)),
        (27, 3, (3, 3, 3)),
    ],
)
def test_the_squarest_grid(length: int, dimensions: int, wanted: tuple[int, ...]) -> None:
    assert squarest(length, dimensions) == wanted


def test_prefix_tokens_are_not_on_the_grid() -> None:
    spec = at_length(MixerSpec(dim=8, num_heads=2, max_length=5, grid=(2, 2), prefix_tokens=1), 17)
    assert (spec.max_length, spec.grid, spec.prefix_tokens) == (17, (4, 4), 1)


def test_a_claim_that_is_exceeded_is_told() -> None:
    measured = Scaling((2048, 16384), (1.0, 16.0), (10, 80), time_exponent=1.33, memory_exponent=1.0)
    assert growth_cells(measured, 1.0) == ["N^1.33, above its claim", "N^1", "N^1.00"]
    assert growth_cells(measured, 1.5) == ["N^1.33", "N^1.5", "N^1.00"]
    assert growth_cells(None, 2.0) == ["", "N^2", ""]
    assert not exceeds(1.25, 1.0)
