"""AFT-conv by convolution: exact at every range of keys and filters, linear in memory, chosen by what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention import MixerSpec
from reattend.attention.aft.conv import AFTConv
from reattend.attention.ops import grid_sums, relative_pairs
from reattend.attention.ops.convolved_average import convolved_average
from reattend.attention.ops.relative_average import is_convolved, relative_average
from reattend.attention.ops.relative_bias import relative_bias
from reattend.efficiency.flops import count_flops
from reattend.efficiency.memory import peak_bytes

GRIDS = [((13,), (5,)), ((7, 4), (5, 3)), ((6, 7), (15, 15)), ((4, 5, 3), (3, 1, 5)), ((9, 9), (11, 5))]
HEADS, REPEATS = 3, 2


def by_pairs(filters: Tensor, key: Tensor, value: Tensor, grid: Sequence[int], outside: float) -> tuple[Tensor, Tensor]:
    """The definition, with the logit of each pair; a place that sees no key has log_sum -inf."""
    bias = relative_bias(filters, grid, [size // 2 for size in filters.shape[1:]], outside)
    logits = key.mT[:, :, None] + bias
    unseen = logits.isinf().all(-1, keepdim=True)
    logits = torch.where(unseen, 0.0, logits)
    shares = torch.where(unseen, 0.0, logits.softmax(-1))
    average = torch.einsum("bhts,bshr->bthr", shares, value.unflatten(2, (len(filters), -1))).flatten(2)
    return average, torch.where(unseen[..., 0], -math.inf, logits.logsumexp(-1)).mT


def inputs(grid: Sequence[int], kernel: Sequence[int], scale: float, dtype: torch.dtype) -> list[Tensor]:
    """Filters, keys, the first half of which the first sample has not, and values."""
    make = torch.Generator().manual_seed(0)
    places = math.prod(grid)
    filters = scale / 3 * torch.randn(HEADS, *kernel, dtype=dtype, generator=make)
    key = scale * torch.rand(2, places, HEADS, dtype=dtype, generator=make)
    key[0, : places // 2] = -math.inf
    value = torch.randn(2, places, HEADS * REPEATS, dtype=dtype, generator=make)
    return [filters, key, value]


def gradients(outputs: tuple[Tensor, Tensor], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    make = torch.Generator().manual_seed(1)
    average, log_sum = outputs
    log_sum = torch.where(log_sum.isinf(), 0.0, log_sum)
    loss = sum((x * torch.randn(x.shape, generator=make).to(x.dtype)).sum() for x in (average, log_sum))
    return torch.autograd.grad(loss, leaves)  # type: ignore[arg-type]


@pytest.mark.parametrize(("grid", "kernel"), GRIDS)
@pytest.mark.parametrize("outside", [0.0, 1.5, -math.inf])
@pytest.mark.parametrize("scale", [1.0, 120.0, 300.0, 2000.0])
def test_it_is_the_definition_however_far_apart_keys_and_filters_are(
    largest_error: Any, grid: tuple[int, ...], kernel: tuple[int, ...], outside: float, scale: float
) -> None:
    """In float64 alone, and in float32, whose sums of exp(120) and more are float64's; 2000 is beyond both."""
    exact = [x.requires_grad_() for x in inputs(grid, kernel, scale, torch.float64)]
    wanted = by_pairs(*exact, grid, outside)
    wanted_gradients = gradients(wanted, exact)
    found = convolved_average(*exact, grid, outside)
    assert torch.equal(found[1].isinf(), wanted[1].isinf())
    assert torch.allclose(found[0], wanted[0], rtol=0, atol=1e-11)
    assert torch.allclose(found[1], wanted[1], rtol=1e-12, atol=1e-12)
    for got, gradient in zip(gradients(found, exact), wanted_gradients, strict=True):
        assert largest_error(got, gradient, 1e-2) < 1e-9
    single = [x.detach().float().requires_grad_() for x in exact]
    rounded = [x.detach().double().requires_grad_() for x in single]
    wanted = by_pairs(*rounded, grid, outside)
    found = convolved_average(*single, grid, outside)
    assert largest_error(found[0], wanted[0]) < 1e-5
    for got, gradient in zip(gradients(found, single), gradients(wanted, rounded), strict=True):
        assert largest_error(got, gradient, 1e-2) < 1e-3


def test_pairs_are_taken_in_parts(largest_error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relative_pairs, "FALLBACK_ELEMENTS", 1)
    leaves = [x.requires_grad_() for x in inputs((7, 4), (3, 5), 2000.0, torch.float64)]
    found, wanted = (form(*leaves, (7, 4), -math.inf) for form in (convolved_average, by_pairs))
    assert largest_error(found[0], wanted[0]) < 1e-11
    for x, y in zip(gradients(found, leaves), gradients(wanted, leaves), strict=True):
        assert largest_error(x, y, 1e-2) < 1e-9


@pytest.mark.parametrize("bias", [-30.0, -100.0])
@pytest.mark.parametrize("grid", [(25,), (5, 5), (3, 3, 3)])
def test_a_dominant_key_under_a_very_negative_bias_leaves_the_others(grid: tuple[int, ...], bias: float) -> None:
    """K = 20 at one place, 0 elsewhere, w = -30: the total less the window would be 0 in float32."""
    places = math.prod(grid)
    key = torch.zeros(1, places, 1)
    key[0, places // 2] = 20.0
    value = torch.arange(places, dtype=torch.float32)[None, :, None]
    filters = torch.full((1, *[3] * len(grid)), bias)
    wanted = by_pairs(filters.double(), key.double(), value.double(), grid, 0.0)
    for x, y in zip(convolved_average(filters, key, value, grid, 0.0), wanted, strict=True):
        assert torch.allclose(x.double(), y, rtol=1e-6, atol=1e-6)


def test_samples_do_not_move_each_other() -> None:
    filters, key, value = inputs((7, 8), (3, 3), 1.0, torch.float32)
    before = convolved_average(filters, key, value, (7, 8), -math.inf)
    key[1, 5], key[1, 40] = 400.0, 5000.0
    for x, y in zip(before, convolved_average(filters, key, value, (7, 8), -math.inf), strict=True):
        assert torch.equal(x[0], y[0])
        assert not torch.equal(x[1], y[1])


@pytest.mark.parametrize(
    ("grid", "kernel"),
    [
        ((1, 9, 20), (1, 15, 15)),
        ((1, 8, 9), (1, 3, 3)),
        ((3, 5, 6), (3, 5, 7)),
        ((1, 70, 90), (1, 5, 3)),
        ((1, 1, 3), (1, 1, 17)),
    ],
)
def test_sums_over_a_grid(largest_error: Any, grid: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    make = torch.Generator().manual_seed(0)
    x, cotangent = (torch.rand(2, *grid, 4, generator=make) for _ in range(2))
    filters = torch.rand(4, *kernel, generator=make)

    def convolved(filters: Tensor) -> Tensor:
        image, padding = x.double().movedim(-1, 1), [size // 2 for size in kernel]
        return F.conv3d(image, filters[:, None], padding=padding, groups=4).movedim(1, -1)

    assert largest_error(grid_sums.filter_sums(x, filters), convolved(filters.double())) < 1e-6
    exact = filters.double().requires_grad_()
    (wanted,) = torch.autograd.grad((convolved(exact) * cotangent).sum(), exact)
    assert largest_error(grid_sums.filter_gradient(cotangent, x, kernel), wanted) < 3e-6
    outside = x.double().sum((1, 2, 3), keepdim=True) - convolved(torch.ones_like(exact))
    assert largest_error(grid_sums.outside_sums(x, kernel), outside, 1e-3) < 3e-6


def test_sums_outside_have_no_difference() -> None:
    """A place 1e-12 times the one in the middle of the grid is all that is left."""
    x = torch.full((1, 1, 9, 9, 1), 1e-12)
    x[0, 0, 4, 4] = 1.0
    sums = grid_sums.outside_sums(x, (1, 3, 3))[0, 0, :, :, 0]
    assert torch.allclose(sums[3:6, 3:6], torch.tensor(72e-12), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("scale", "kernel"), [(1.0, 11), (30.0, 3)])
def test_memory_is_linear_in_the_number_of_places(scale: float, kernel: int) -> None:
    """Also where a sample is computed again in float64."""
    mixer = AFTConv(MixerSpec(32, 4, 16 * 16, (16, 16)), kernel_size=kernel, outside="minus_infinity")
    bytes_for = []
    for size in (32, 64):
        assert is_convolved((size, size), (kernel, kernel), 2 * 9)
        x = scale * torch.randn(2, size**2, 32)

        def call(x: Tensor = x) -> None:
            y = mixer(x)
            assert isinstance(y, Tensor)
            y.sum().backward()

        call()
        bytes_for.append(peak_bytes(call))
    assert bytes_for[1] < 4.2 * bytes_for[0]


def test_the_table_is_for_few_places() -> None:
    """At 14 x 14 for 32 filters, not for 192. No kernel has a table whatever the grid."""
    assert not is_convolved((14, 14), (11, 11), 64 * 7)
    assert is_convolved((14, 14), (11, 11), 64 * 2)
    assert is_convolved((24, 24), (11, 11), 64 * 7)
    assert is_convolved((14, 14), (3, 3), 16 * 2)
    for taps in (1, 11, 25):
        places = int(70 + 2.5 * taps**2) + 1
        assert is_convolved((places,), (taps, taps), 10**9)


@pytest.mark.parametrize("size", [4, 24])
def test_operations_are_counted(size: int) -> None:
    spec = MixerSpec(64, 1, size**2, (size, size))
    mixer, gates = AFTConv(spec, kernel_size=3), size**2 * 64
    assert is_convolved(spec.grid or (), (3, 3), 65) == (size == 24)
    assert count_flops(mixer, {"x": torch.randn(1, size**2, 64)}) == mixer.flops(size**2) - gates


def test_both_forms_are_one_function(largest_error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tokens at no place, whose biases are not those outside."""
    leaves = [x.requires_grad_() for x in inputs((34,), (5,), 1.0, torch.float64)]
    filters = torch.randn(HEADS, 3, 3, dtype=torch.float64, requires_grad=True)
    leaves[0] = filters
    found = []
    for choice in (True, False):
        monkeypatch.setattr("reattend.attention.ops.relative_average.is_convolved", lambda *_, choice=choice: choice)
        outputs = relative_average(*leaves, (4, 8), outside=0.7, elsewhere=-0.4)
        found.append([*outputs, *gradients(outputs, leaves)])
    for x, y in zip(*found, strict=True):
        assert torch.allclose(x, y, rtol=0, atol=1e-12)
