"""Outputs and all gradients of every combination of slots against the naive twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.recenter import Recenter

KERNELS = ["softmax", {"name": "softmax", "fused": False}, {"name": "linear", "feature_map": "elu_plus_one"}]
RECENTERS = [
    None,
    {"beta": 1.0},
    {"beta": 0.3, "learnable": True},
    {"beta": 0.6, "std": True},
    {"beta": 0.0, "learnable": True, "std": True},
]
SCALED = [None, {"scales": [2, 1, 3, 2]}, {"scales": [3, 2, 1, 20], "pooling": "stride"}]
SLOTS = [
    ({"kernel": kernel, "recenter": recenter, "scaled_heads": scaled}, causal)
    for kernel in KERNELS
    for recenter in RECENTERS
    for scaled in SCALED
    for causal in (False, True)
]
FITTING = [
    (options, causal)
    for options, causal in SLOTS
    if not MultiHeadAttention.problems(MixerSpec(4, 4, 1, causal=causal), **options)
]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    num_heads = draw(st.integers(1, 3))
    scales = st.lists(st.sampled_from([1, 2, 3, 20]), min_size=num_heads, max_size=num_heads)
    pooling = st.sampled_from(["mean", "stride"])
    case = {
        "num_heads": num_heads,
        "head_dim": draw(st.integers(1, 4)),
        "length": draw(st.integers(1, 11)),
        "context_length": draw(st.none() | st.integers(1, 8)),
        "prefix_tokens": draw(st.integers(0, 2)),
        "causal": draw(st.booleans()),
        "padded": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
        "options": {
            "kernel": draw(st.sampled_from(KERNELS)),
            "recenter": draw(st.sampled_from(RECENTERS)),
            "scaled_heads": draw(st.none() | st.fixed_dictionaries({"scales": scales, "pooling": pooling})),
            "bias": draw(st.booleans()),
            "residual": draw(st.booleans()),
        },
    }
    spec = MixerSpec(num_heads, num_heads, 1, causal=case["causal"])
    assume(not (case["causal"] and case["context_length"]))
    assume(not MultiHeadAttention.problems(spec, **case["options"]))
    return case


def mask(length: int, padded: bool) -> torch.Tensor | None:
    # Padding anywhere, not at the end alone, and samples without a real token.
    return torch.rand(3, length) < torch.tensor([0.8, 0.3, 0.0])[:, None] if padded else None


def errors(build: Any, errors_to_twin: Any, case: dict[str, Any], dtype: torch.dtype) -> tuple[float, float]:
    heads, length = case["num_heads"], case["length"]
    spec = {"causal": case["causal"], "prefix_tokens": case["prefix_tokens"], "num_heads": heads, "length": length}
    mixer = build(case["options"], dim=heads * case["head_dim"], dtype=dtype, seed=case["seed"], **spec)
    x = torch.randn(3, length, mixer.spec.dim, dtype=dtype)
    padding_mask = mask(length, case["padded"])
    if case["context_length"] is None:
        return errors_to_twin(mixer, x, padding_mask)
    context = torch.randn(3, case["context_length"], mixer.spec.dim, dtype=dtype)
    return errors_to_twin(mixer, x, padding_mask, context, mask(case["context_length"], case["padded"]))


@pytest.mark.parametrize(("options", "causal"), FITTING)
@pytest.mark.parametrize("padded", [False, True])
def test_every_combination_of_slots_is_its_twin(
    build: Any, errors_to_twin: Any, options: dict[str, Any], causal: bool, padded: bool
) -> None:
    # What is drawn below does not reach all of them.
    for context_length in (None,) if causal else (None, 8):
        case = {"num_heads": 4, "head_dim": 2, "length": 7, "prefix_tokens": 1, "causal": causal, "padded": padded}
        case |= {"options": options, "context_length": context_length, "seed": 3}
        forward, backward = errors(build, errors_to_twin, case, torch.float64)
        assert forward < 1e-10
        assert backward < 1e-9


@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=cases())
def test_float64_outputs_and_gradients_are_the_twins(build: Any, errors_to_twin: Any, case: dict[str, Any]) -> None:
    forward, backward = errors(build, errors_to_twin, case, torch.float64)
    assert forward < 1e-9
    assert backward < 1e-8


@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=cases())
def test_float32_outputs_and_gradients_are_near_the_twins(
    build: Any, errors_to_twin: Any, case: dict[str, Any]
) -> None:
    # A standard deviation of two or three keys may be close to zero, and enlarges the rounding of the projection.
    assume(not (case["options"]["recenter"] or {}).get("std"))
    forward, backward = errors(build, errors_to_twin, case, torch.float32)
    assert forward < 5e-6
    assert backward < 2e-5


@pytest.mark.parametrize(("kernel", "causal"), [("softmax", False), ("softmax", True), ("linear", False)])
def test_float32_standard_deviation_is_near_the_twin(
    build: Any, errors_to_twin: Any, kernel: str, causal: bool
) -> None:
    mixer = build({"kernel": kernel, "recenter": {"beta": 0.7, "std": True}}, dtype=torch.float32, causal=causal)
    forward, backward = errors_to_twin(mixer, torch.randn(2, 21, 8))
    assert forward < 1e-5
    assert backward < 1e-4


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("std", [False, True])
def test_features_that_are_constant_over_the_keys(build: Any, errors_to_twin: Any, std: bool, causal: bool) -> None:
    mixer = build({"recenter": {"beta": 0.5, "std": std}}, dtype=torch.float32, causal=causal)
    with torch.no_grad():
        mixer.qkv.weight[8:11] = 0.0
        # Causal logits hold the prefix mean in the query alone, so a large constant costs them digits.
        mixer.qkv.bias[8:11] = torch.tensor([10.0 if causal and not std else 1000.0, -0.3, 0.0])
    forward, backward = errors_to_twin(mixer, torch.randn(2, 9, 8))
    assert forward < 1e-4
    assert backward < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [100, 4099])
@pytest.mark.parametrize("units", [0, 1])
@pytest.mark.parametrize("pad", [False, True])
def test_a_constant_feature_is_seen_through_rounding(
    dtype: torch.dtype, causal: bool, length: int, units: int, pad: bool
) -> None:
    recenter = Recenter(MixerSpec(8, 1, length, causal=causal), std=True)
    constants = torch.tensor([0.1, 1 / 3, 123.456, 1e-5, 0.7, -9.87, 1e4 / 7, 0.9], dtype=dtype)
    k = constants.repeat(1, 1, length, 1)
    if units:  # The same product in two places of a matrix need not round to the same last digit.
        k[:, :, 1::3] = torch.nextafter(k[:, :, 1::3], torch.tensor(torch.inf, dtype=dtype))
    real = torch.rand(1, length, generator=torch.Generator().manual_seed(0)) < 0.7 if pad else None
    for shift_invariant in (True,) if causal else (True, False):
        q, _ = recenter(torch.ones_like(k), k, real, (0,), shift_invariant)
        assert not q.any()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-7), (torch.float64, 1e-11)])
@pytest.mark.parametrize("start", [0.0, 1e4])
def test_prefix_moments_keep_their_digits(dtype: torch.dtype, tolerance: float, start: float) -> None:
    k = 1000 + 0.9 * torch.randn(1, 1, 4099, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
    k[:, :, 0] += start  # As a start token's key may be far from the others.
    q, _ = Recenter(MixerSpec(2, 1, 4099, causal=True), std=True)(torch.zeros_like(k), k, None, (0,), True)
    for t in (1, 7, 500, 4098):
        past = k[:, :, : t + 1].double()
        exact = -past.mean(2) / past.var(2, unbiased=False)
        assert torch.allclose(q[:, :, t].double(), exact, rtol=tolerance, atol=0)


def test_a_constant_feature_changes_no_causal_output(build: Any) -> None:
    mixer = build({"recenter": {"std": True}}, length=200, causal=True)
    x = torch.randn(1, 200, 8, dtype=torch.float64)
    with torch.no_grad():
        mixer.qkv.weight[8] = 0.0
        mixer.qkv.bias[8] = 0.0
        without = mixer(x)
        mixer.qkv.bias[8] = 0.1
        assert torch.allclose(mixer(x), without, rtol=0, atol=1e-12)


def test_a_small_spread_on_a_large_mean_is_not_constant(build: Any, errors_to_twin: Any) -> None:
    mixer = build({"recenter": {"std": True}}, dtype=torch.float32)
    with torch.no_grad():
        mixer.qkv.bias[:16] += 1000.0
    x = torch.randn(2, 9, 8)
    without = mixer(x)
    with torch.no_grad():
        mixer.qkv.weight[8] = 0.0
    assert (mixer(x) - without).abs().max() > 1e-2
    assert errors_to_twin(mixer, x)[0] < 2e-2


@pytest.mark.parametrize(
    "options",
    [
        {"recenter": {"beta": 0.4, "learnable": True, "std": True}, "scaled_heads": {"scales": [1, 2]}},
        {"kernel": "linear", "recenter": {"beta": 0.4, "learnable": True, "std": True}},
        {"kernel": {"name": "softmax", "fused": False}, "scaled_heads": {"scales": [3, 1], "pooling": "stride"}},
    ],
)
def test_gradcheck(build: Any, options: dict[str, Any]) -> None:
    mixer = build(options, dim=4, length=5)
    real = torch.tensor([[True, True, False, True, True]])
    x = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, real))

    assert torch.autograd.gradcheck(run, (x, *mixer.parameters()))
