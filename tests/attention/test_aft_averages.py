"""Weighted averages, running averages and windows against their definition with every pair's own exponent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention.ops import causal_weighted_average as causal
from reattend.attention.ops import tile_average
from reattend.attention.ops.causal_weighted_average import causal_weighted_average
from reattend.attention.ops.local_average import local_average, tiles_of_band, tiles_of_factors
from reattend.attention.ops.overall_average import overall_average
from reattend.attention.ops.running_average import running_average
from reattend.attention.ops.weighted_average import merge, weighted_average

Average = Callable[..., tuple[Tensor, Tensor]]


def definition(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """In float64; the weights are exp(key + bias), relative to the largest of their row and channel."""
    bias, key, value = bias.double(), key.double(), value.double()
    logits = bias[..., None] + key[:, None]
    largest = logits.detach().amax(2, keepdim=True)
    weights = (logits - torch.where(largest.isinf(), 0.0, largest)).exp()
    total = weights.sum(2)
    shares = weights / torch.where(total > 0, total, 1.0)[:, :, None]
    average = (shares.repeat_interleave(value.shape[2] // key.shape[2], 3) * value[:, None]).sum(2)
    seen = total > 0
    return average, torch.where(seen, torch.where(seen, total, 1.0).log() + largest[:, :, 0], -math.inf)


def future(length: int) -> Tensor:
    return torch.full((length, length), -math.inf).triu(1)


def causal_definition(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return definition(bias + future(bias.shape[1]), key, value)


def errors(got: Average, wanted: Average, *inputs: Tensor) -> float:
    """Largest difference of outputs and all gradients, relative to the largest entry of each."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    pairs = got(*leaves), wanted(*leaves)
    assert torch.equal(pairs[0][1].isinf(), pairs[1][1].isinf())
    cotangents = [torch.randn_like(x) for x in pairs[0]]
    found = []
    for outputs in pairs:
        finite = [torch.where(x.isinf(), 0.0, x) for x in outputs]
        total = sum(((x * c).sum() for x, c in zip(finite, cotangents, strict=True)), torch.zeros(()))
        found.append([x.detach() for x in finite] + list(torch.autograd.grad(total, leaves)))
    assert all(x.isfinite().all() for x in found[0])
    return max(
        ((x - y).abs().max() / y.abs().max().clamp(min=1e-9)).item() for x, y in zip(*found, strict=True) if y.numel()
    )


def inputs(length: int, repeats: int, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(length + repeats)
    bias, key = scale * torch.randn(2, length, length), scale * torch.randn(2, length, 3)
    key[torch.rand(2, length) < 0.3] = -math.inf
    key[1, :, 2] = -math.inf  # A channel without a key.
    return bias.to(dtype), key.to(dtype), torch.randn(2, length, 3 * repeats).to(dtype)


# Exponents of thousands are computed pair by pair; float32 holds them, and their log_sum, to 1e-4.
@pytest.mark.parametrize(
    ("scale", "dtype", "tolerance"),
    [
        (1.0, torch.float64, 1e-13),
        (300.0, torch.float64, 1e-11),
        (1.0, torch.float32, 2e-6),
        (30.0, torch.float32, 3e-5),
        (1000.0, torch.float32, 2e-3),
    ],
)
@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("length", [1, 8, 27, 150])
class TestAgainstTheDefinition:
    def test_weighted(self, length: int, repeats: int, scale: float, dtype: torch.dtype, tolerance: float) -> None:
        bias, key, value = inputs(length, repeats, scale, dtype)
        bias[torch.rand_like(bias) < 0.3] = -math.inf
        assert errors(weighted_average, definition, bias, key, value) < tolerance

    def test_causal(self, length: int, repeats: int, scale: float, dtype: torch.dtype, tolerance: float) -> None:
        assert errors(causal_weighted_average, causal_definition, *inputs(length, repeats, scale, dtype)) < tolerance

    def test_running(self, length: int, repeats: int, scale: float, dtype: torch.dtype, tolerance: float) -> None:
        _, key, value = inputs(length, repeats, scale, dtype)
        bias = future(length).expand(2, -1, -1)
        assert errors(running_average, lambda k, v: definition(bias, k, v), key, value) < tolerance

    def test_overall(self, length: int, repeats: int, scale: float, dtype: torch.dtype, tolerance: float) -> None:
        _, key, value = inputs(length, repeats, scale, dtype)
        bias = torch.zeros(2, 1, length)
        assert errors(overall_average, lambda k, v: definition(bias, k, v), key, value) < tolerance


def band_as_bias(band: Tensor, window: int, is_causal: bool, outside: bool) -> Tensor:
    length = band.shape[1]
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    at = (ahead + window - 1).clamp(0, band.shape[2] - 1).expand(len(band), -1, -1)
    bias = band.gather(2, at).masked_fill(ahead.abs() >= window, 0.0 if outside else -math.inf)
    return bias.masked_fill(ahead > 0, -math.inf) if is_causal else bias


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize(("length", "window"), [(5, 1), (40, 1), (70, 5), (70, 33), (32, 40)])
@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize(
    ("scale", "dtype", "tolerance"),
    [
        (3.0, torch.float64, 1e-12),
        (3.0, torch.float32, 1e-5),
        (60.0, torch.float32, 3e-4),
        (500.0, torch.float64, 1e-10),
    ],
)
def test_a_window_is_the_definition(
    length: int, window: int, repeats: int, outside: bool, is_causal: bool, scale: float, dtype: Any, tolerance: float
) -> None:
    _, key, value = inputs(length, repeats, scale, dtype)
    band = scale * torch.randn(2, length, window if is_causal else 2 * window - 1, dtype=dtype)

    def got(band: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        tiles = tiles_of_band(band, is_causal)
        return local_average(tiles, key, value, window=window, causal=is_causal, outside=outside)

    def wanted(band: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return definition(band_as_bias(band, window, is_causal, outside), key, value)

    assert errors(got, wanted, band, key, value) < tolerance


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [1, 5, 33])
def test_tiles_of_factors_are_those_of_their_product(window: int, is_causal: bool) -> None:
    rows, columns = torch.randn(2, 1, 70, 3, dtype=torch.float64)
    ahead = torch.arange(1 - window, 1 if is_causal else window)
    at = torch.arange(70)[:, None] + ahead
    inside = (at >= 0) & (at < 70)
    band = (rows @ columns.mT)[0].gather(1, at.clamp(0, 69)).masked_fill(~inside, 0.0)
    assert torch.allclose(tiles_of_factors(rows, columns, window, is_causal), tiles_of_band(band[None], is_causal))


def test_maxima_at_different_keys_do_not_underflow() -> None:
    """exp(0 - 120) exp(-200 - 0) alone has no float32: the sum is e^0 v_0 + e^-80 v_1."""
    bias, key = torch.tensor([[[0.0, -200.0]]]), torch.tensor([[[0.0], [120.0]]])
    value = torch.tensor([[[3.0], [5.0]]])
    average, log_sum = weighted_average(bias, key, value)
    assert average.item() == pytest.approx(3.0, rel=1e-6)
    assert log_sum.item() == pytest.approx(0.0, abs=1e-6)


def test_a_late_large_key_leaves_earlier_rows_as_they_are() -> None:
    key, value = torch.zeros(1, 64, 1), torch.arange(64.0)[None, :, None]
    key[0, -1] = 120.0
    expected = torch.arange(63) / 2.0
    for average, _ in (running_average(key, value), causal_weighted_average(torch.zeros(1, 64, 64), key, value)):
        assert torch.allclose(average[0, :63, 0], expected)
        assert average[0, 63, 0].item() == pytest.approx(63.0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_dominant_key_of_very_negative_bias_takes_nothing_from_the_others(is_causal: bool) -> None:
    """Sum exp(K) - (1 - e^w) exp(K) cancels to zero in float32; the sum is 8 e^0 + e^-10."""
    key = torch.zeros(1, 9, 1)
    key[0, -1] = 20.0
    band = torch.zeros(1, 9, 1)
    band[0, -1] = -30.0
    value = torch.ones(1, 9, 1)
    _, log_sum = local_average(tiles_of_band(band, is_causal), key, value, window=1, causal=is_causal)
    assert log_sum[0, -1].item() == pytest.approx(math.log(8 + math.exp(-10)), rel=1e-6)


@pytest.mark.parametrize("function", [causal_weighted_average, "running", "local"])
@pytest.mark.parametrize("size", [1.0, 200.0, 3000.0])
def test_the_future_does_not_move_a_bit(function: Any, size: float) -> None:
    length = 150
    torch.manual_seed(0)
    bias, key, value = 3 * torch.randn(1, length, length), 3 * torch.randn(1, length, 4), torch.randn(1, length, 8)
    tiles = tiles_of_band(bias[:, :, :6], causal=True)

    def outputs(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if function == "running":
            return running_average(key, value)
        if function == "local":
            return local_average(tiles, key, value, window=6, causal=True)
        average: tuple[Tensor, Tensor] = function(bias, key, value)
        return average

    before = outputs(key, value)
    for t in (1, 9, 66, 149):
        other_key, other_value = key.clone(), value.clone()
        other_key[:, t:] = size * torch.randn_like(key[:, t:])
        other_value[:, t:] = 50 * torch.randn_like(value[:, t:])
        for one, other in zip(before, outputs(other_key, other_value), strict=True):
            assert torch.equal(one[:, :t], other[:, :t])


def test_only_blocks_that_underflow_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bias, key, value = 5 * torch.randn(4, 6, 6), 5 * torch.randn(4, 6, 2), torch.randn(4, 6, 2)
    bias[2, 0], key[2, :, 0] = torch.arange(6) * -30.0, torch.arange(6) * 30.0
    again: list[torch.dtype] = []
    exactly = tile_average._again

    def spy(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        again.append(bias.dtype)
        return exactly(bias, key, value)

    monkeypatch.setattr(tile_average, "_again", spy)
    average, _ = weighted_average(bias, key, value)
    assert again == [torch.float32]  # One tile of the four, and float64 holds it.
    assert torch.allclose(average.double(), definition(bias, key, value)[0], atol=1e-5)
    assert torch.equal(weighted_average(bias[:2], key[:2], value[:2])[0], average[:2])


def test_a_wide_range_alone_stays_in_the_fast_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is how far a row's sum lies below its two maxima, not how far keys range."""
    monkeypatch.setattr(tile_average, "_again", lambda *_: pytest.fail("computed again"))
    key = torch.linspace(-500, 500, 6)[None, :, None]
    bias, value = torch.randn(1, 6, 6), torch.randn(1, 6, 1)
    average, _ = weighted_average(bias, key, value)
    assert torch.allclose(average.double(), definition(bias, key, value)[0], atol=1e-6)


@pytest.mark.parametrize("smallest", [1, 4, 8])
def test_the_size_of_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch, smallest: int) -> None:
    bias, key, value = inputs(27, 2, 3.0, torch.float64)
    wanted = causal_weighted_average(bias, key, value)
    monkeypatch.setattr(causal, "SMALLEST", smallest)
    for one, other in zip(causal_weighted_average(bias, key, value), wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_merged_parts_are_the_average_of_all_keys() -> None:
    bias, key, value = inputs(12, 2, 3.0, torch.float64)
    cuts = [slice(0, 5), slice(5, 6), slice(6, 12)]

    def got(bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return merge([weighted_average(bias[:, :, cut], key[:, cut], value[:, cut]) for cut in cuts])

    assert errors(got, definition, bias, key, value) < 1e-12


@pytest.mark.parametrize("function", [weighted_average, causal_weighted_average])
def test_gradcheck_where_it_is_computed_again(function: Average) -> None:
    """Exponents of thousands in float64 go pair by pair."""
    torch.manual_seed(1)
    bias, key = 2.0 * torch.randn(1, 9, 9).double(), 2.0 * torch.randn(1, 9, 2).double()
    bias[0, :, ::2] += 1000.0
    key[0, ::2] -= 1000.0
    leaves = [x.requires_grad_() for x in (bias, key, torch.randn(1, 9, 2).double())]
    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("wide", [False, True])
def test_one_compiled_graph_takes_both_ways(wide: bool) -> None:
    bias, key, value = torch.randn(1, 9, 9), torch.randn(1, 9, 2), torch.randn(1, 9, 2)
    if wide:
        bias[0, 0], key[0, :, 0] = torch.arange(9) * -100.0, torch.arange(9) * 100.0

    tiles = [tiles_of_band(bias[:, :, :3], is_causal) for is_causal in (False, True)]

    def total(key: Tensor) -> Tensor:
        parts = [weighted_average(bias, key, value), causal_weighted_average(bias, key, value)]
        parts.append(local_average(tiles[0], key, value, window=2, causal=False))
        parts.append(local_average(tiles[1], key, value, window=3, causal=True))
        return sum((a.sum() + z.sum() for a, z in [*parts, running_average(key, value)]), torch.zeros(()))

    torch._dynamo.reset()
    compiled = torch.compile(total, backend="aot_eager", fullgraph=True)
    key.requires_grad_()
    (wanted,), (got,) = (torch.autograd.grad(f(key), key) for f in (total, compiled))
    assert torch.allclose(got, wanted, atol=1e-5)
