"""YOSO against its twin, its estimate against the expectation, under extremes, and against Hugging Face's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, MultiHeadAttention, naive
from reattend.attention.ops.collisions import expected_collisions, sampled_collisions
from reattend.attention.ops.hashing import sign_codes
from reattend.attention.ops.unit import unit

DTYPE = torch.float64
SAMPLED = {"name": "yoso", "expectation": False, "code_length": 3, "num_hashes": 5}
KERNELS: list[dict[str, Any]] = [
    {"name": "yoso"},
    {"name": "yoso", "gradient": "exact", "code_length": 2},
    {"name": "yoso", "gradient": "exact", "code_length": 1},
    SAMPLED,
]


def case(kernel: dict[str, Any], slots: dict[str, Any], padded: bool, context: bool) -> tuple[Tensor | None, ...]:
    torch.manual_seed(1)
    x = torch.randn(3, 11, 8, dtype=DTYPE)
    mask = torch.rand(3, 11) < torch.tensor([0.8, 0.3, 0.0])[:, None] if padded else None
    if not context:
        return x, mask
    return x, mask, torch.randn(3, 7, 8, dtype=DTYPE), torch.rand(3, 7) < 0.7 if padded else None


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize(
    "slots", [{}, {"recenter": {"beta": 0.4, "learnable": True}, "scaled_heads": {"scales": [2, 1]}}]
)
def test_outputs_and_gradients_are_the_twins(
    build: Any, errors_to_twin: Any, kernel: dict[str, Any], slots: dict[str, Any], padded: bool, context: bool
) -> None:
    mixer = build({"kernel": kernel, **slots}, length=11)
    forward, backward = errors_to_twin(mixer, *case(kernel, slots, padded, context))
    assert forward < 1e-11
    assert backward < 1e-10


@pytest.mark.parametrize("kernel", KERNELS)
def test_float32_is_near_the_twin(build: Any, errors_to_twin: Any, kernel: dict[str, Any]) -> None:
    mixer = build({"kernel": kernel}, dtype=torch.float32)
    forward, backward = errors_to_twin(mixer, torch.randn(3, 19, 8), torch.rand(3, 19) < 0.8)
    assert forward < 1e-5
    assert backward < 1e-4


def test_gradcheck_of_the_exact_gradient(build: Any) -> None:
    mixer = build({"kernel": {"name": "yoso", "gradient": "exact", "code_length": 4}}, dim=4, length=5)
    real = torch.tensor([[True, True, False, True, True]])
    x = torch.randn(1, 5, 4, dtype=DTYPE, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, real))

    assert torch.autograd.gradcheck(run, (x, *mixer.parameters()))


def test_the_published_gradient_is_a_lower_bound() -> None:
    cosine = torch.linspace(-0.999, 0.999, 200, dtype=DTYPE)
    for bits in (1, 4, 9):
        slopes = []
        for exact in (False, True):
            q = torch.stack([cosine, (1 - cosine**2).sqrt()], -1)[None, None].requires_grad_()
            one = torch.ones(1, 1, 1, 1, dtype=DTYPE)
            key = torch.tensor([1.0, 0.0], dtype=DTYPE).view(1, 1, 1, 2)
            expected_collisions(q, key, one, bits, exact).sum().backward()
            assert q.grad is not None
            slopes.append(q.grad[0, 0, :, 0])
        assert (slopes[0] <= slopes[1]).all()
        share = 1 - cosine.acos() / math.pi
        assert torch.allclose(slopes[0], bits / 2 * share**bits)


def test_samples_estimate_values_and_gradients() -> None:
    torch.manual_seed(0)
    q, k = (unit(torch.randn(2, 2, n, 4, dtype=DTYPE)).requires_grad_() for n in (9, 6))
    v = torch.randn(2, 2, 6, 3, dtype=DTYPE, requires_grad=True)
    planes = torch.randn(4000, 2, 4, 3, dtype=DTYPE)
    sampled = sampled_collisions(q, k, v, sign_codes(q, planes), sign_codes(k, planes), 3)
    expected = expected_collisions(q, k, v, 3, False)
    assert torch.allclose(sampled, expected, atol=0.1)
    cotangent = torch.randn_like(expected)
    for got, wanted in zip(
        torch.autograd.grad(sampled, (q, k, v), cotangent),
        torch.autograd.grad(expected, (q, k, v), cotangent),
        strict=True,
    ):
        assert torch.allclose(got, wanted, atol=0.2)


def test_one_hash_is_a_lookup() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 30, 4) for _ in range(3))
    planes = torch.randn(1, 1, 4, 2)
    codes = [((x[0, 0] @ planes[0, 0] > 0) * torch.tensor([1, 2])).sum(1) for x in (q, k)]
    assert torch.equal(sign_codes(q, planes)[0, 0, 0], codes[0])
    wanted = torch.stack([v[0, 0][codes[1] == code].sum(0) for code in codes[0]])
    got = sampled_collisions(q, k, v, sign_codes(q, planes), sign_codes(k, planes), 2)
    assert torch.allclose(got[0, 0], wanted, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_of_a_head_have_length_one(build: Any, kernel: dict[str, Any]) -> None:
    mixer = build({"kernel": kernel})
    q, k, v = torch.randn(3, 2, 2, 9, 4, dtype=DTYPE)
    norms = mixer.kernel(q, k, v).norm(dim=-1)
    assert torch.allclose(norms[norms > 0], torch.ones((), dtype=DTYPE))
    assert torch.equal(mixer.kernel(7 * q, k / 3, v), mixer.kernel(q, k, v)) or torch.allclose(
        mixer.kernel(7 * q, k / 3, v), mixer.kernel(q, k, v)
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_padding_changes_nothing(build: Any, kernel: dict[str, Any]) -> None:
    mixer = build({"kernel": kernel})
    x = torch.randn(2, 9, 8, dtype=DTYPE)
    more = torch.cat([x, 100 * torch.randn(2, 5, 8, dtype=DTYPE)], 1)
    assert torch.allclose(mixer(more, torch.arange(14).expand(2, 14) < 9)[:, :9], mixer(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 120.0])
def test_extremes_are_finite(build: Any, kernel: dict[str, Any], autocast: bool, scale: float) -> None:
    mixer = build({"kernel": kernel}, dtype=torch.float32)
    masks = torch.ones(4, 13, dtype=torch.bool)
    masks[1], masks[2, 1:], masks[3, :12] = False, False, False
    with torch.no_grad():
        mixer.qkv.weight[:16] = torch.eye(8).repeat(2, 1)  # A query is its key, where arccos has no derivative.
    for bias in (0.0, 0.3):
        mixer.qkv.bias.data.fill_(bias)
        for x in (torch.randn(4, 13, 8), torch.ones(4, 13, 8), torch.zeros(4, 13, 8)):
            leaf = (scale * x).requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = mixer(leaf, masks)
            mixer.zero_grad()
            y.float().square().sum().backward()
            assert y.isfinite().all()
            assert leaf.grad is not None
            assert leaf.grad.isfinite().all()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())
            assert not y[1].any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_compiles_without_graph_breaks(build: Any, kernel: dict[str, Any]) -> None:
    mixer = build({"kernel": kernel}, dtype=torch.float32)
    x, mask = torch.randn(2, 9, 8, requires_grad=True), torch.rand(2, 9) < 0.8
    y, compiled = mixer(x, mask), torch.compile(mixer, backend="aot_eager", fullgraph=True)(x, mask)
    assert torch.allclose(y, compiled, atol=1e-6)
    wanted, got = (torch.autograd.grad(out.square().sum(), x)[0] for out in (y, compiled))
    assert torch.allclose(got, wanted, atol=1e-5)


def test_hyperplanes_are_kept_or_drawn_anew(build: Any) -> None:
    x = torch.randn(1, 9, 8, dtype=DTYPE)
    mixer = build({"kernel": SAMPLED})
    assert torch.equal(mixer(x), mixer(x))
    redrawing = build({"kernel": {**SAMPLED, "redraw": True}})
    assert not torch.equal(redrawing(x), redrawing(x))
    assert torch.equal(redrawing.eval()(x), mixer(x))
    assert torch.equal(mixer(x), mixer(x))


def test_problems_are_told() -> None:
    for options, word in (
        ({"code_length": 0}, "code_length=0"),
        ({"code_length": 17}, "code_length=17"),
        ({"num_hashes": 0}, "num_hashes=0"),
        ({"expectation": False, "gradient": "exact"}, "gradient=exact"),
        ({"gradient": "none"}, "gradient"),
    ):
        (problem,) = MultiHeadAttention.problems(MixerSpec(8, 2, 9), kernel={"name": "yoso", **options})
        assert word in problem
    (problem,) = MultiHeadAttention.problems(MixerSpec(8, 2, 9, causal=True), kernel="yoso")
    assert "whole sequences" in problem


def test_sampling_claims_linear_time() -> None:
    assert MultiHeadAttention.capabilities(kernel="yoso").time_exponent == 2
    assert MultiHeadAttention.capabilities(kernel=SAMPLED).time_exponent == 1


def test_unit_vectors() -> None:
    x = torch.tensor([[3.0, 4.0], [3e-30, 4e-30], [3e38, -1e38], [0.0, 0.0]], requires_grad=True)
    y = unit(x)
    assert torch.allclose(y[:2], torch.tensor([[0.6, 0.8], [0.6, 0.8]]))
    assert torch.allclose(y.norm(dim=1), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert not x.grad[3].any()
    assert torch.autograd.gradcheck(unit, torch.randn(5, 3, dtype=DTYPE, requires_grad=True))


@pytest.mark.slow
def test_hugging_face_yoso_is_the_same(build: Any) -> None:
    modeling = pytest.importorskip("transformers.models.yoso.modeling_yoso")
    configuration = pytest.importorskip("transformers").YosoConfig(hidden_size=8, num_attention_heads=2)
    assert (configuration.use_expectation, configuration.hash_code_len, configuration.num_hash) == (True, 9, 64)
    theirs = modeling.YosoSelfAttention(configuration).eval()
    ours = build({"kernel": "yoso"}, dtype=torch.float32)
    with torch.no_grad():
        layers = (theirs.query, theirs.key, theirs.value)
        for layer, weight, bias in zip(layers, ours.qkv.weight.chunk(3), ours.qkv.bias.chunk(3), strict=True):
            layer.weight.copy_(weight), layer.bias.copy_(bias)
        ours.proj.weight.copy_(torch.eye(8)), ours.proj.bias.zero_()
    gradients = []
    x = torch.randn(2, 9, 8)
    cotangent = torch.randn(2, 9, 8)
    outputs = []
    for run in (lambda x: theirs(x, torch.zeros(2, 9))[0], ours):
        leaf = x.clone().requires_grad_()
        outputs.append(run(leaf))
        gradients.append(torch.autograd.grad(outputs[-1], leaf, cotangent)[0])
    assert torch.allclose(*outputs, atol=1e-5)
    assert torch.allclose(*gradients, atol=1e-4)
    assert naive.forward(ours, x).sub(outputs[0]).abs().max() < 1e-5
