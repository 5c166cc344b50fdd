"""Pooling attention: one factor for all heads, and windows that a learned convolution pools."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from reattend.attention import MixerSpec, MultiHeadAttention

CONV = [
    {"scales": 4, "pooling": "conv"},
    {"scales": [2, 3, 2, 1], "pooling": "conv"},
    {"scales": 20, "pooling": "conv"},
]
KERNELS = ["softmax", "linear"]


def mask(length: int, padded: bool) -> torch.Tensor | None:
    return torch.rand(3, length) < torch.tensor([0.8, 0.3, 0.0])[:, None] if padded else None


@pytest.mark.parametrize("scaled_heads", [{"scales": 4}, {"scales": 3, "pooling": "stride"}, *CONV])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("recenter", [None, {"beta": 0.6, "learnable": True}])
def test_outputs_and_gradients_are_the_twins(
    build: Any, errors_to_twin: Any, scaled_heads: Any, kernel: str, padded: bool, recenter: Any
) -> None:
    options = {"scaled_heads": scaled_heads, "kernel": kernel, "recenter": recenter}
    for length, prefix_tokens in ((13, 1), (8, 0), (2, 3)):
        mixer = build(options, dim=8, num_heads=4, length=length, prefix_tokens=prefix_tokens)
        x = torch.randn(3, length, 8, dtype=torch.float64)
        forward, backward = errors_to_twin(mixer, x, mask(length, padded))
        assert forward < 1e-10
        assert backward < 1e-8
    context = torch.randn(3, 11, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, None, context, mask(11, padded))
    assert forward < 1e-10
    assert backward < 1e-8


@pytest.mark.parametrize("padded", [False, True])
def test_a_new_convolution_is_mean_pooling(padded: bool) -> None:
    spec = MixerSpec(8, 2, 13, prefix_tokens=1)
    conv = MultiHeadAttention(spec, scaled_heads={"scales": 4, "pooling": "conv"}).double()
    mean = MultiHeadAttention(spec, scaled_heads={"scales": 4}).double()
    mean.load_state_dict(conv.state_dict(), strict=False)
    x = torch.randn(3, 13, 8, dtype=torch.float64)
    real = mask(13, padded)
    assert torch.allclose(conv(x, real), mean(x, real), rtol=0, atol=1e-12)


def test_one_factor_is_that_factor_for_each_head(build: Any) -> None:
    one = build({"scaled_heads": {"scales": 3}})
    each = build({"scaled_heads": {"scales": [3, 3]}})
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    assert torch.equal(one(x), each(x))


def test_without_a_factor_heads_stay_whole() -> None:
    assert MultiHeadAttention(MixerSpec(8, 2, 9), scaled_heads={"scales": None}).scaled_heads.scales == [1, 1]
    assert MultiHeadAttention.capabilities(scaled_heads={"scales": 1}).causal
    assert not MultiHeadAttention.capabilities(scaled_heads={"scales": 4}).causal


def test_parameters_are_those_of_convolved_heads_alone() -> None:
    spec = MixerSpec(8, 4, 9)
    for pooling in ("mean", "stride"):
        mixer = MultiHeadAttention(spec, scaled_heads={"scales": [1, 2, 3, 2], "pooling": pooling})
        assert not list(mixer.scaled_heads.parameters())
    mixer = MultiHeadAttention(spec, scaled_heads={"scales": [1, 2, 3, 2], "pooling": "conv"})
    shapes = {name: tuple(parameter.shape) for name, parameter in mixer.scaled_heads.named_parameters()}
    assert shapes == {
        "key_filters.2": (2, 2, 2),
        "key_filters.3": (1, 3, 2),
        "value_filters.2": (2, 2, 2),
        "value_filters.3": (1, 3, 2),
    }
    other = copy.deepcopy(mixer)
    other.load_state_dict(mixer.state_dict())


def test_a_new_attention_draws_the_same_numbers_whatever_pools() -> None:
    states = []
    for scaled_heads in (None, {"scales": 4, "pooling": "conv"}):
        torch.manual_seed(0)
        states.append(MultiHeadAttention(MixerSpec(8, 2, 9), scaled_heads=scaled_heads).state_dict())
    assert all(torch.equal(states[1][name], value) for name, value in states[0].items())


def test_padding_is_as_if_it_were_not_there(build: Any) -> None:
    mixer = build({"scaled_heads": {"scales": 4, "pooling": "conv"}}, length=13)
    x = torch.randn(2, 13, 8, dtype=torch.float64)
    real = torch.arange(13) < torch.tensor([13, 6])[:, None]
    y = mixer(x, real)
    assert torch.allclose(mixer(x.masked_fill(~real[..., None], 100.0), real)[real], y[real], rtol=0, atol=1e-12)
    assert torch.allclose(y[1, :6], mixer(x[1:, :6])[0], rtol=0, atol=1e-12)


def test_gradcheck(build: Any) -> None:
    mixer = build({"scaled_heads": {"scales": [2, 3], "pooling": "conv"}}, dim=4, length=5)
    real = torch.tensor([[True, True, False, True, True]])
    x = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, real))

    assert torch.autograd.gradcheck(run, (x, *mixer.parameters()))


@pytest.mark.parametrize("padded", [False, True])
def test_autocast_is_near_float32(build: Any, largest_error: Any, padded: bool) -> None:
    mixer = build({"scaled_heads": {"scales": 4, "pooling": "conv"}}, length=13, dtype=torch.float32)
    x = torch.randn(3, 13, 8)
    real = mask(13, padded)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, real)
    assert largest_error(y, mixer(x, real)) < 3e-2


@pytest.mark.parametrize("padded", [False, True])
def test_large_keys_and_lone_tokens_are_finite(build: Any, padded: bool) -> None:
    mixer = build({"scaled_heads": {"scales": 4, "pooling": "conv"}}, length=13, dtype=torch.float32)
    x = (120 * torch.randn(3, 13, 8)).requires_grad_()
    real = None
    if padded:
        real = torch.zeros(3, 13, dtype=torch.bool)
        real[0, 5] = real[1, 12] = True
    y = mixer(x, real)
    y.square().mean().backward()
    assert y.isfinite().all()
    for tensor in (x, *mixer.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


def test_compiles_in_one_graph(build: Any) -> None:
    mixer = build({"scaled_heads": {"scales": [2, 3], "pooling": "conv"}})
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 9, 8, dtype=torch.float64)
    for real in (None, mask(9, True)):
        assert torch.allclose(compiled(x, real), mixer(x, real), rtol=0, atol=1e-12)


def test_what_cannot_work_is_named() -> None:
    spec, conv = MixerSpec(8, 2, 9), {"scales": 4, "pooling": "conv"}
    capabilities = MultiHeadAttention.capabilities(scaled_heads=conv)
    assert not capabilities.attention_map
    assert "filter of its own" in capabilities.reasons["attention_map"]
    assert MultiHeadAttention.capabilities(scaled_heads={"scales": 4}).attention_map
    causal = MixerSpec(8, 2, 9, causal=True)
    assert "mixes tokens of the future" in MultiHeadAttention.problems(causal, scaled_heads=conv)[0]
    assert "must be 1 (the whole head) or larger" in MultiHeadAttention.problems(spec, scaled_heads={"scales": 0})[0]
    assert "'scales'" in MultiHeadAttention.problems(spec, scaled_heads={"scales": 2.5})[0]


@pytest.mark.parametrize("pooling", ["mean", "stride"])
def test_a_window_beyond_the_sequence_costs_no_more_than_one_of_its_length(build: Any, pooling: str) -> None:
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    real = torch.arange(9)[None] < torch.tensor([[9], [5]])
    huge, whole = (build({"scaled_heads": {"scales": s, "pooling": pooling}}, prefix_tokens=1) for s in (10**12, 8))
    for mask in (None, real):
        assert torch.allclose(huge(x, mask), whole(x, mask), rtol=0, atol=1e-12)
        assert torch.allclose(huge.attention_map(x, mask), whole.attention_map(x, mask), rtol=0, atol=1e-12)


def test_filters_are_no_longer_than_the_sequence() -> None:
    mixer = MultiHeadAttention(MixerSpec(8, 2, 9, prefix_tokens=1), scaled_heads={"scales": 99, "pooling": "conv"})
    assert [tuple(p.shape) for name, p in mixer.named_parameters() if "filters" in name] == [(2, 8, 4)] * 2
