"""Extremes stay finite; keys with a large mean keep their digits; fused, unfused and dropout agree."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from reattend.attention import MixerSpec
from reattend.attention.feature_maps.elu_plus_one import EluPlusOne
from reattend.attention.naive import multihead as naive

COMBINATIONS = [
    {"kernel": kernel, "recenter": recenter, "scaled_heads": scaled, "causal": causal}
    for causal in (False, True)
    for kernel in ("softmax", {"name": "softmax", "fused": False}, "linear")
    for recenter in (None, {"beta": 1.0}, {"beta": 0.5, "learnable": True, "std": True})
    for scaled in (None, {"scales": [1, 3]}, {"scales": [2, 8], "pooling": "stride"})
    if not (causal and (scaled or (recenter and kernel == "linear")))
]
signs = torch.tensor([1.0, -1.0]).repeat(4)
noise = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(4))
EXTREMES = {
    "120 of either sign": 120 * noise.sign(),
    "all -120": torch.full((2, 7, 8), -120.0),
    "all 120": torch.full((2, 7, 8), 120.0),
    "opposite directions": 120 * signs * signs[:7, None].expand(2, 7, 8),
    "identical": noise[:, :1].expand(2, 7, 8),
    "nearly identical": 120 + 1e-4 * noise,
    "exp is denormal": noise - 95,
    "exp underflows in part": 3 * noise - 101,
    "zero": torch.zeros(2, 7, 8),
    "small": 1e-12 * noise,
    "tiny": 1e-20 * noise,
}
MASKS = {
    "all real": None,
    "one real token": torch.arange(7) == torch.tensor([[4], [0]]),
    "a sample without any": torch.arange(7) < torch.tensor([[5], [0]]),
}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES)
def test_extremes_are_finite_forward_and_backward(build: Any, extreme: torch.Tensor, precision: torch.dtype) -> None:
    for combination in COMBINATIONS:
        options = {name: value for name, value in combination.items() if name != "causal"}
        mixer = build(options, dtype=torch.float32, causal=combination["causal"])
        with torch.no_grad():  # Queries, keys and values are then the input itself.
            mixer.qkv.weight.copy_(torch.eye(8).repeat(3, 1))
            mixer.qkv.bias.zero_()
        for name, mask in MASKS.items():
            x = extreme.clone().requires_grad_()
            with torch.autocast("cpu", precision, enabled=precision != torch.float32):
                y = mixer(x, mask)
            gradients = torch.autograd.grad((y.float() * noise).sum(), [x, *mixer.parameters()])
            assert all(tensor.isfinite().all() for tensor in (y, *gradients)), (combination, name)


def test_a_linear_query_far_below_zero_is_still_right(build: Any, errors_to_twin: Any) -> None:
    mixer = build({"kernel": "linear"}, dtype=torch.float32)
    with torch.no_grad():
        mixer.qkv.bias[:8] = -200.0
    forward, backward = errors_to_twin(mixer, torch.randn(2, 9, 8))
    assert forward < 1e-4
    assert backward < 1e-3


def test_linear_keys_far_below_zero_keep_their_weights(build: Any, errors_to_twin: Any) -> None:
    mixer = build({"kernel": "linear"}, dtype=torch.float32)
    with torch.no_grad():
        mixer.qkv.bias[8:16] = -30.0  # elu(x) + 1 by way of elu(x) = exp(x) - 1 is zero here.
        mixer.qkv.weight[8:16] *= 4.0
    forward, backward = errors_to_twin(mixer, torch.randn(2, 9, 8))
    assert forward < 1e-4
    assert backward < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elu_plus_one_keeps_its_digits_below_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([-80.0, -17.5, -6.5, -1.0, -0.0, 0.0, 0.5, 90.0], dtype=dtype, requires_grad=True)
    features = EluPlusOne(MixerSpec(8, 2, 9))(x)
    (slope,) = torch.autograd.grad(features.sum(), x)
    exact = torch.where(x >= 0, x.double() + 1, x.double().exp()).detach()
    unit = torch.finfo(dtype).eps
    assert torch.allclose(features.double(), exact, rtol=unit, atol=0)
    assert torch.allclose(slope.double(), torch.where(x >= 0, 1.0, exact), rtol=unit, atol=0)


def test_a_linear_normaliser_of_zero_gives_zero(build: Any) -> None:
    mixer = build({"kernel": "linear"}, dtype=torch.float32)
    with torch.no_grad():
        mixer.qkv.bias[8:16] = -200.0
        mixer.proj.bias.zero_()
    x = torch.randn(2, 9, 8, requires_grad=True)
    y = mixer(x)
    assert not y.any()
    assert not torch.autograd.grad(y.sum(), x)[0].any()


@pytest.mark.parametrize("std", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", ["about the keys' mean", "about zero"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
def test_keys_of_mean_10_and_spread_a_tenth(
    build: Any, largest_error: Any, std: bool, fused: bool, causal: bool, queries: str, precision: torch.dtype
) -> None:
    options = {"recenter": {"beta": 1.0, "std": std}, "kernel": {"name": "softmax", "fused": fused}}
    mixer = build(options, dim=16, length=40, dtype=torch.float32, causal=causal)
    x = torch.randn(6, 40, 16)
    near = queries == "about the keys' mean"
    with torch.no_grad():
        orthogonal = torch.linalg.qr(torch.randn(16, 16))[0]
        # Queries about zero are 10 from the mean of the keys, so that the weights are far from uniform.
        mixer.qkv.weight[:32] = torch.cat([(0.1 if near else 1.0) * orthogonal.roll(1, 0), 0.1 * orthogonal])
        mixer.qkv.bias[:32] = 10.0
        mixer.qkv.bias[:16] *= near
        for tensor in (x, *mixer.parameters()):
            tensor.copy_(tensor.to(precision))
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        y = mixer(x)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[precision]
    if precision == torch.float32 and (causal or (std and not near)):
        # Division by sigma^2, or by the chance spread of a few first keys, enlarges the rounding of the projection
        # itself; causal logits hold the prefix mean in the query alone.
        tolerance = 1e-3 if std and not near else 1e-4
    assert largest_error(y, naive.forward(mixer, x)) < tolerance


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("recenter", [None, {"beta": 1.0}, {"std": True}])
def test_float16_holds_the_logits_of_large_features(build: Any, fused: bool, recenter: dict[str, Any] | None) -> None:
    kernel = {"name": "softmax", "fused": fused}
    mixer = build({"kernel": kernel, "recenter": recenter}, dim=64, num_heads=1, dtype=torch.float32)
    with torch.no_grad():
        mixer.qkv.weight.copy_(torch.eye(64).repeat(3, 1))
    x = 120 * torch.randn(2, 9, 64).sign()
    for mask in MASKS.values():
        with torch.autocast("cpu", torch.float16):
            padding = None if mask is None else torch.nn.functional.pad(mask, (0, 2))
            assert mixer(x, padding).isfinite().all()
            assert mixer.attention_map(x, padding).isfinite().all()


@pytest.mark.parametrize("fused", [False, True])
def test_float16_holds_queries_over_a_small_variance(build: Any, largest_error: Any, fused: bool) -> None:
    mixer = build({"kernel": {"name": "softmax", "fused": fused}, "recenter": {"std": True}}, dtype=torch.float32)
    with torch.no_grad():
        mixer.qkv.weight[8:16] *= 1e-4  # Queries over sigma^2 are about 1e8.
    x = torch.randn(2, 9, 8)
    with torch.no_grad():
        for tensor in (x, *mixer.parameters()):
            tensor.copy_(tensor.half())
    with torch.autocast("cpu", torch.float16):
        y = mixer(x)
    assert largest_error(y, naive.forward(mixer, x)) < 3e-2


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_bfloat16_is_near_the_twin_on_rounded_inputs(
    build: Any, largest_error: Any, combination: dict[str, Any]
) -> None:
    options = {name: value for name, value in combination.items() if name != "causal"}
    mixer = build(options, dim=16, length=40, dtype=torch.float32, causal=combination["causal"])
    x = torch.randn(2, 40, 16)
    real = torch.arange(40) < torch.tensor([[40], [23]])
    with torch.no_grad():
        for tensor in (x, *mixer.parameters()):
            tensor.copy_(tensor.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, real)
    assert largest_error(y, naive.forward(mixer, x, real)) < 3e-2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pad", [False, True])
def test_fused_is_unfused(build: Any, causal: bool, pad: bool) -> None:
    fused = build({"recenter": {"beta": 0.5}}, causal=causal)
    unfused = build({"recenter": {"beta": 0.5}, "kernel": {"name": "softmax", "fused": False}}, causal=causal)
    x = torch.randn(3, 9, 8, dtype=torch.float64)
    real = torch.rand(3, 9) < 0.6 if pad else None
    results = []
    for mixer in (fused, unfused):
        y = mixer(x, real)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(mixer.parameters()))])
    assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scales", [None, [1, 2]])
def test_attention_dropout_is_unbiased(build: Any, fused: bool, scales: list[int] | None) -> None:
    kernel = {"name": "softmax", "fused": fused}
    mixer = build({"kernel": kernel, "dropout": 0.3, "scaled_heads": {"scales": scales}}, length=6)
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    without = mixer.eval()(x)
    assert torch.equal(mixer(x), without)
    draws = mixer.train()(x.expand(4000, 6, 8))
    error = draws.std(0) / 4000**0.5
    assert error.min() > 1e-4
    assert ((draws.mean(0) - without[0]).abs() / error).max() < 5


def test_half_precision_weights_are_recentred_in_float32(build: Any, largest_error: Any) -> None:
    mixer = build({"recenter": {"beta": 1.0}}, dtype=torch.bfloat16)
    with torch.no_grad():
        mixer.qkv.bias[:16] = 100.0
    x = torch.randn(2, 9, 8, dtype=torch.bfloat16)
    y = mixer(x)
    assert y.dtype == torch.bfloat16
    assert largest_error(y, naive.forward(mixer, x)) < 3e-2


@pytest.mark.parametrize(("kernel", "causal"), [("softmax", False), ("linear", True)])
def test_compiles_without_a_graph_break(build: Any, kernel: str, causal: bool) -> None:
    recenter = None if causal and kernel == "linear" else {"beta": 0.5, "learnable": True, "std": True}
    scaled = None if causal else {"scales": [1, 2]}
    mixer = build({"kernel": kernel, "recenter": recenter, "scaled_heads": scaled}, causal=causal, dtype=torch.float32)
    x, real = torch.randn(2, 9, 8), torch.arange(9) < torch.tensor([[9], [4]])
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    for precision in (contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16)):
        with precision:
            assert torch.allclose(compiled(x, real), mixer(x, real), rtol=0, atol=1e-6)
