"""Exact facts about the mechanisms of the primal-dual paper (facts, sections 1.3 to 1.6)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.kernels.linear import LinearKernel
from reattend.attention.kernels.softmax import SoftmaxKernel
from reattend.attention.naive.kernels import softmax as naive_softmax
from reattend.attention.naive.recenter import recenter as naive_recenter
from reattend.attention.naive.tokens import Tokens
from reattend.attention.recenter import Recenter
from reattend.attention.scaled_heads import ScaledHeads

SPEC = MixerSpec(8, 2, 12)
HEADS = (0, 1)


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, 2, 12, 4, dtype=torch.float64, generator=generator)
    return q, k + 0.5, v


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-13)


def test_equation_22_is_equation_24(qkv: Any) -> None:
    q, k, v = qkv
    mean, variance = k.mean(2, keepdim=True), k.var(2, unbiased=False, keepdim=True)
    logits = ((q / variance) @ k.mT - (mean / variance) @ k.mT) / math.sqrt(4)
    eqn_24 = logits.softmax(-1) @ v
    q_22, k_22 = Recenter(SPEC, beta=1.0, std=True)(q, k, None, HEADS, True)
    assert same(SoftmaxKernel(SPEC)(q_22, k_22, v), eqn_24)
    one = torch.tensor(1.0, dtype=torch.float64)
    q_naive, k_naive = naive_recenter(q[0, 0], k[0, 0], one, True, 2.0**-53)
    tokens = Tokens(0, [True] * 12, [[j] for j in range(12)])
    assert same(naive_softmax.attend(q_naive, k_naive, v[0, 0], SoftmaxKernel(SPEC), tokens), eqn_24[0, 0])


@pytest.mark.parametrize("fused", [True, False])
def test_equation_26_is_a_shift_of_the_query_alone(qkv: Any, fused: bool) -> None:
    q, k, v = qkv
    kernel = SoftmaxKernel(SPEC, fused=fused)
    recentered = kernel(*Recenter(SPEC, beta=0.7)(q, k, None, HEADS, True), v)
    assert same(recentered, kernel(q - 0.7 * k.mean(2, keepdim=True), k, v))
    assert not torch.allclose(recentered, kernel(q, k, v), atol=1e-2)


def test_recentring_the_keys_alone_does_nothing_under_softmax(qkv: Any) -> None:
    q, k, v = qkv
    kernel = SoftmaxKernel(SPEC)
    assert same(kernel(q, k - 0.7 * k.mean(2, keepdim=True), v), kernel(q, k, v))


def test_the_linear_kernel_is_not_a_shift_of_the_query_alone(qkv: Any) -> None:
    q, k, v = qkv
    kernel = LinearKernel(SPEC)
    mean = k.mean(2, keepdim=True)
    recentered = kernel(*Recenter(SPEC, beta=1.0)(q, k, None, HEADS, False), v)
    assert same(recentered, kernel(q - mean, k - mean, v))
    assert (recentered - kernel(q - mean, k, v)).abs().max() > 1e-2


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_beta_zero_and_whole_heads_are_the_plain_kernel(build: Any, kernel: str) -> None:
    plain = build({"kernel": kernel})
    same_thing = build({"kernel": kernel, "recenter": {"beta": 0.0}, "scaled_heads": {"scales": [1, 1]}})
    learnable = build(
        {"kernel": kernel, "recenter": {"beta": 0.0, "learnable": True}, "scaled_heads": {"scales": None}}
    )
    learnable.load_state_dict(plain.state_dict() | {"recenter.beta": torch.zeros(2)})
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    assert torch.equal(plain(x), same_thing(x))
    assert same(plain(x), learnable(x))


def test_plain_attention_is_that_of_torch(build: Any) -> None:
    ours = build({})
    peer = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    peer.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.proj.weight,
            "out_proj.bias": ours.proj.bias,
        }
    )
    x, context = torch.randn(2, 9, 8, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    real = torch.arange(9) < torch.tensor([[9], [4]])
    assert same(ours(x, real), peer(x, x, x, key_padding_mask=~real)[0])
    assert same(ours(x, None, context), peer(x, context, context)[0])
    assert set(ours.state_dict()) == {"qkv.weight", "qkv.bias", "proj.weight", "proj.bias"}


@pytest.mark.parametrize(("pooling", "commutes"), [("mean", True), ("stride", False)])
def test_recentring_and_scaling_commute_under_mean_pooling(qkv: Any, pooling: Any, commutes: bool) -> None:
    q, k, v = qkv
    recenter, kernel = Recenter(SPEC, beta=0.7), SoftmaxKernel(SPEC)
    heads = ScaledHeads(SPEC, scales=[3, 3], pooling=pooling)
    k_pooled, v_pooled, _ = heads.pool(k, v, None, 3, 0)
    pooled_first = kernel(*recenter(q, k_pooled, None, HEADS, True), v_pooled)
    q_first, k_first = recenter(q, k, None, HEADS, True)
    recentered_first = kernel(q_first, *heads.pool(k_first, v, None, 3, 0)[:2])
    assert same(pooled_first, recentered_first) is commutes


def test_a_scale_beyond_the_sequence_averages_all_real_values(build: Any) -> None:
    mixer = build({"scaled_heads": {"scales": [50, 50]}})
    x, real = torch.randn(2, 9, 8, dtype=torch.float64), torch.arange(9) < torch.tensor([[9], [4]])
    values = mixer.qkv(x)[..., 16:]
    mean = torch.stack([values[0].mean(0), values[1, :4].mean(0)])
    assert same(mixer(x, real), mixer.proj(mean)[:, None].expand(2, 9, 8))


@pytest.mark.parametrize("degree", [4, 14])
def test_the_taylor_feature_map_of_softmax_is_the_truncated_exponential(degree: int) -> None:
    q, k = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def features(x: Tensor) -> Tensor:
        """Eqn 28: one feature for each multi-index of a total of `degree` at most."""
        columns = []
        for n in itertools.product(range(degree + 1), repeat=3):
            if sum(n) <= degree:
                norm = math.sqrt(math.prod(math.factorial(i) for i in n))
                columns.append((x / 3**0.25).pow(torch.tensor(n)).prod(-1) / norm)
        return torch.stack(columns, -1)

    similarity = features(q) @ features(k).T
    exponent = q @ k.T / math.sqrt(3)
    assert same(similarity, sum(exponent**t / math.factorial(t) for t in range(degree + 1)))
    weights = SoftmaxKernel(MixerSpec(3, 1, 5)).weights(q[None, None], k[None, None])[0, 0]
    distance = (similarity / similarity.sum(1, keepdim=True) - weights).abs().max()
    assert distance < (1e-6 if degree == 14 else 1e-1)
    assert bool(distance > 1e-6) is (degree == 4)


def test_flops_of_scaled_heads_are_the_mean_of_the_inverse_scales() -> None:
    def kernel_flops(scales: list[int] | None, kernel: str, length: int) -> int:
        mixer = MultiHeadAttention(MixerSpec(64, 4, 4096), kernel=kernel, scaled_heads={"scales": scales})
        return mixer.flops(length) - 8 * length * 64**2

    assert kernel_flops(None, "softmax", 4096) == 4 * 4096**2 * 64
    assert kernel_flops([1, 1, 2, 4], "softmax", 4096) / kernel_flops(None, "softmax", 4096) == 0.6875
    assert kernel_flops([1, 1, 1, 2], "softmax", 7) == 4 * 7 * 16 * (7 + 7 + 7 + 4)
    # phi(k) v^T and phi(q) S, the normaliser phi(q) . z, and the sum z.
    assert kernel_flops(None, "linear", 100) == 100 * (2 * 2 * 64 * 16 + 2 * 64 + 64)


def test_residual_adds_the_input(build: Any) -> None:
    plain, residual = build({}), build({"residual": True})
    x, context = torch.randn(2, 9, 8, dtype=torch.float64), torch.randn(2, 4, 8, dtype=torch.float64)
    assert torch.equal(residual(x), x + plain(x))
    assert torch.equal(residual(x, None, context), x + plain(x, None, context))


def test_cross_attention_to_itself_is_self_attention(build: Any) -> None:
    mixer = build({"recenter": {"beta": 0.5}, "scaled_heads": {"scales": [1, 2]}})
    x, real = torch.randn(2, 9, 8, dtype=torch.float64), torch.arange(9) < torch.tensor([[9], [4]])
    assert same(mixer(x, real), mixer(x, None, x, real))


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
@pytest.mark.parametrize("scaled", [None, {"scales": [2, 1]}, {"scales": [4, 3], "pooling": "stride"}])
@pytest.mark.parametrize("prefix_tokens", [0, 1])
def test_the_attention_map_gives_the_output(build: Any, kernel: str, scaled: Any, prefix_tokens: int) -> None:
    mixer = build({"kernel": kernel, "scaled_heads": scaled, "recenter": {}}, prefix_tokens=prefix_tokens)
    x, real = torch.randn(2, 9, 8, dtype=torch.float64), torch.arange(9) < torch.tensor([[9], [4]])
    weights = mixer.attention_map(x, real)
    values = mixer.qkv(x)[..., 16:].unflatten(-1, (2, 4)).transpose(1, 2)
    assert same(mixer.proj((weights @ values).transpose(1, 2).flatten(2)), mixer(x, real))
    assert same(weights.sum(-1), torch.ones(2, 2, 9, dtype=torch.float64))
    assert weights[1, :, :, 4:].abs().max() == 0
