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
from reattend.attention.ops.merged_averages import merge
from reattend.attention.ops.overall_average import overall_average
from reattend.attention.ops.running_average import running_average
from reattend.attention.ops.weighted_average import weighted_average
from reattend.attention.ops.window_average import window_average
from reattend.attention.ops.window_tiles import tiles_of_band, tiles_of_factors

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


def window_of(band: Tensor, key: Tensor, value: Tensor, is_causal: bool, outside: bool = True) -> tuple[Tensor, Tensor]:
    tiles = tiles_of_band(band, is_causal, 0.0 if outside else -math.inf)
    return window_average(tiles, key, value, causal=is_causal, outside=outside)


def band_as_bias(band: Tensor, window: int, is_causal: bool, outside: bool) -> Tensor:
    length = len(band)
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    at = (ahead + window - 1).clamp(0, band.shape[1] - 1)
    bias = band.gather(1, at).masked_fill(ahead.abs() >= window, 0.0 if outside else -math.inf)
    return bias.masked_fill(ahead > 0, -math.inf) if is_causal else bias


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize(("length", "window"), [(5, 1), (40, 1), (70, 5), (140, 33), (270, 72), (32, 40)])
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
    band = scale * torch.randn(length, window if is_causal else 2 * window - 1, dtype=dtype)

    def wanted(band: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        bias = band_as_bias(band, window, is_causal, outside)
        return definition(bias.expand(2, -1, -1), key, value)

    assert errors(lambda *x: window_of(*x, is_causal, outside), wanted, band, key, value) < tolerance


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [1, 5, 33])
@pytest.mark.parametrize("fill", [0.0, -math.inf])
def test_tiles_of_factors_are_those_of_their_product(window: int, is_causal: bool, fill: float) -> None:
    rows, columns = torch.randn(2, 70, 3, dtype=torch.float64)
    ahead = torch.arange(1 - window, 1 if is_causal else window)
    at = torch.arange(70)[:, None] + ahead
    inside = (at >= 0) & (at < 70)
    band = (rows @ columns.mT).gather(1, at.clamp(0, 69)).masked_fill(~inside, 0.0)
    got, wanted = tiles_of_factors(rows, columns, window, is_causal, fill), tiles_of_band(band, is_causal, fill)
    assert torch.allclose(got, wanted)


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
    band = torch.zeros(9, 1)
    band[-1] = -30.0
    value = torch.ones(1, 9, 1)
    _, log_sum = window_of(band, key, value, is_causal)
    assert log_sum[0, -1].item() == pytest.approx(math.log(8 + math.exp(-10)), rel=1e-6)


@pytest.mark.parametrize("function", [causal_weighted_average, "running", "local"])
@pytest.mark.parametrize("size", [1.0, 200.0, 3000.0])
def test_the_future_does_not_move_a_bit(function: Any, size: float) -> None:
    length = 150
    torch.manual_seed(0)
    bias, key, value = 3 * torch.randn(1, length, length), 3 * torch.randn(1, length, 4), torch.randn(1, length, 8)

    def outputs(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if function == "running":
            return running_average(key, value)
        if function == "local":
            return window_of(bias[0, :, :6], key, value, is_causal=True)
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


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sample_that_overflows_leaves_others_as_they_are(is_causal: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    band, key, value = (torch.randn(shape).to(dtype) for shape in ((80, 5), (3, 80, 2), (3, 80, 2)))
    others = [0, 2]
    before = window_of(band, key, value, is_causal)
    key[1, 40:, 0] += 3000.0
    key[1, 60:, 1] -= 3000.0
    after = window_of(band, key, value, is_causal)
    wanted = definition(band_as_bias(band, 5 if is_causal else 3, is_causal, True).expand(3, -1, -1), key, value)
    for one, other, exact in zip(before, after, wanted, strict=True):
        assert torch.equal(one[others], other[others])
        assert torch.allclose(other.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
def test_samples_of_several_chunks_are_the_definition(monkeypatch: pytest.MonkeyPatch, is_causal: bool) -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(shape).double() for shape in ((80, 5), (5, 80, 2), (5, 80, 4))]
    monkeypatch.setattr("reattend.attention.ops.window_average.CHUNK", 2 * 80 * 6)

    def exact(band: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        bias = band_as_bias(band, 5 if is_causal else 3, is_causal, True)
        return definition(bias.expand(5, -1, -1), key, value)

    assert errors(lambda *x: window_of(*x, is_causal), exact, *leaves) < 1e-12


def test_gradients_where_a_late_weight_would_overflow() -> None:
    """Its exponent is 100 above the first key's, and no row's sum is small."""
    torch.manual_seed(0)
    band, key, value = torch.randn(80, 5), torch.randn(2, 80, 2), torch.randn(2, 80, 2)
    key[0, 50, 1] = 100.0

    def exact(band: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return definition(band_as_bias(band, 5, True, True).expand(2, -1, -1), key, value)

    assert errors(lambda *x: window_of(*x, is_causal=True), exact, band, key, value) < 1e-5


def test_gradients_of_exp_30_with_a_late_key_and_a_small_sum() -> None:
    """exp(29.5) of the late key, of the second row's sum, and the gradient of exp(30) have no product in float32."""
    bias, key = torch.zeros(1, 3, 3), torch.tensor([0.0, -40.0, 29.5])[None, :, None]
    bias[0, 1, 0] = -29.5
    leaves = [x.requires_grad_() for x in (bias, key, torch.randn(1, 3, 1))]
    found = []
    for function in (causal_weighted_average, causal_definition):
        average, _ = function(*leaves)
        found.append(torch.autograd.grad(math.exp(30) * average.sum(), leaves))
    for got, wanted in zip(*found, strict=True):
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-6 * math.exp(30))


@pytest.mark.parametrize("is_causal", [False, True])
def test_rows_that_see_no_key_are_not_computed_again(monkeypatch: pytest.MonkeyPatch, is_causal: bool) -> None:
    monkeypatch.setattr("reattend.attention.ops.window_average._exactly", lambda *_: pytest.fail("computed again"))
    key = torch.randn(2, 80, 2)
    key[0, 30:], key[1, :30] = -math.inf, -math.inf
    average, log_sum = window_of(torch.randn(80, 5), key, torch.randn(2, 80, 2), is_causal, outside=False)
    assert not average[0, 40:].any()
    assert log_sum[0, 40:].isneginf().all()


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


@pytest.mark.parametrize("kind", ["merge", "weighted", "causal", "running", "window", "causal window"])
def test_a_backward_pass_under_autocast_keeps_its_precision(kind: str) -> None:
    """Equal to the last bit: no product is rounded to bfloat16, in either pass."""
    torch.manual_seed(0)
    leaves = [torch.randn(2, 70, 70), torch.randn(2, 70, 3), torch.randn(2, 70, 6)]
    leaves = [x.requires_grad_() for x in leaves]

    def gradients() -> tuple[Tensor, ...]:
        bias, key, value = leaves
        functions: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
            "merge": lambda: merge([(value, key), (value.flip(1), key.flip(1))]),
            "weighted": lambda: weighted_average(bias, key, value),
            "causal": lambda: causal_weighted_average(bias, key, value),
            "running": lambda: running_average(key, value),
            "window": lambda: window_of(bias[0, :, :5], key, value, is_causal=False),
            "causal window": lambda: window_of(bias[0, :, :5], key, value, is_causal=True),
        }
        average, log_sum = functions[kind]()
        return torch.autograd.grad((average.sin().sum() + log_sum.sin().sum()), leaves, allow_unused=True)

    wanted = gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = gradients()
    for x, y in zip(got, wanted, strict=True):
        assert x is y is None or torch.equal(x, y)


def test_merged_parts_that_lie_far_apart_or_have_no_key() -> None:
    """Log sums may broadcast against averages, as (..., 1, B) against (..., R, B)."""
    averages = [torch.randn(3, 2, 4, dtype=torch.float64) for _ in range(3)]
    log_sums = [torch.randn(3, 1, 4, dtype=torch.float64) for _ in range(3)]
    log_sums[1][0], log_sums[2][1] = 2000.0, -2000.0
    for log_sum in log_sums:
        log_sum[2, :, 0] = -math.inf
    leaves = [x.requires_grad_() for x in (*averages, *log_sums)]
    average, log_sum = merge(list(zip(leaves[:3], leaves[3:], strict=True)))
    shares = torch.stack(leaves[3:]).softmax(0).nan_to_num()
    wanted = (shares * torch.stack(leaves[:3])).sum(0)
    assert torch.allclose(average, wanted, atol=1e-13)
    assert torch.equal(log_sum, torch.stack(leaves[3:]).logsumexp(0))
    assert not average[2, :, 0].any()
    got, twin = (torch.autograd.grad(x.sin().sum(), leaves) for x in (average, wanted))
    assert all(x.isfinite().all() for x in got)
    assert all(torch.allclose(x[:2], y[:2], atol=1e-13) for x, y in zip(got, twin, strict=True))


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

    def total(key: Tensor) -> Tensor:
        parts = [weighted_average(bias, key, value), causal_weighted_average(bias, key, value)]
        parts += [window_of(bias[0, :, :3], key, value, is_causal) for is_causal in (False, True)]
        return sum((a.sum() + z.sum() for a, z in [*parts, running_average(key, value)]), torch.zeros(()))

    torch._dynamo.reset()
    compiled = torch.compile(total, backend="aot_eager", fullgraph=True)
    key.requires_grad_()
    (wanted,), (got,) = (torch.autograd.grad(f(key), key) for f in (total, compiled))
    assert torch.allclose(got, wanted, atol=1e-5)
