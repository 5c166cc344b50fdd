"""The kernels cosformer, efficient and flowformer: twins, identities, causality, decoding, extremes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.ops.causal_feature_softmax import causal_feature_softmax
from reattend.attention.ops.cumulative_logsumexp import cumulative_logsumexp
from reattend.errors import ReattendError

KERNELS: dict[str, Any] = {
    "cosformer": "cosformer",
    "efficient": "efficient",
    "efficient_kernel": {"name": "efficient", "causal_normaliser": "kernel"},
    "flowformer": "flowformer",
}
both_forms = pytest.mark.parametrize("causal", [False, True])
every_kernel = pytest.mark.parametrize("name", KERNELS)


def mask(length: int) -> Tensor:
    # Padding anywhere, not at the end alone, and a sample without a real token.
    return torch.rand(3, length) < torch.tensor([0.8, 0.4, 0.0])[:, None]


@every_kernel
@both_forms
@pytest.mark.parametrize("length", [1, 2, 7, 13])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    build: Any, errors_to_twin: Any, name: str, causal: bool, length: int, padded: bool
) -> None:
    mixer = build({"kernel": KERNELS[name]}, length=13, causal=causal)
    x = 2 * torch.randn(3, length, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, mask(length) if padded else None)
    assert forward < 1e-11
    assert backward < 1e-10


@every_kernel
@pytest.mark.parametrize(("length", "context_length"), [(9, 4), (3, 11)])
@pytest.mark.parametrize("padded", [False, True])
def test_context_is_the_twins(
    build: Any, errors_to_twin: Any, name: str, length: int, context_length: int, padded: bool
) -> None:
    mixer = build({"kernel": KERNELS[name]})
    x, context = torch.randn(3, length, 8).double(), torch.randn(3, context_length, 8).double()
    masks = (mask(length), mask(context_length)) if padded else (None, None)
    forward, backward = errors_to_twin(mixer, x, masks[0], context, masks[1])
    assert forward < 1e-11
    assert backward < 1e-10


@every_kernel
def test_more_than_one_chunk_is_the_twins(build: Any, errors_to_twin: Any, name: str) -> None:
    mixer = build({"kernel": KERNELS[name]}, dim=2, num_heads=1, length=70, causal=True)
    real = torch.ones(1, 70, dtype=torch.bool)
    real[0, 58:66] = False
    forward, backward = errors_to_twin(mixer, torch.randn(1, 70, 2).double(), real)
    assert forward < 1e-11
    assert backward < 1e-10


@every_kernel
@both_forms
def test_float32_is_near_the_twins(build: Any, errors_to_twin: Any, name: str, causal: bool) -> None:
    mixer = build({"kernel": KERNELS[name]}, dtype=torch.float32, length=13, causal=causal)
    forward, backward = errors_to_twin(mixer, torch.randn(3, 13, 8), mask(13))
    assert forward < 5e-6
    assert backward < 3e-5


@every_kernel
@both_forms
def test_autocast_is_near_the_twins_on_rounded_inputs(build: Any, largest_error: Any, name: str, causal: bool) -> None:
    kernel = build({"kernel": KERNELS[name]}, dtype=torch.float32, length=13, causal=causal).kernel
    q, k, v = (torch.randn(2, 2, 13, 4).bfloat16() for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out = kernel(q, k, v)
    assert out.dtype == torch.bfloat16
    assert largest_error(out, kernel(q.double(), k.double(), v.double())) < 1e-2


@every_kernel
@both_forms
def test_gradcheck(build: Any, name: str, causal: bool) -> None:
    kernel = build({"kernel": KERNELS[name]}, dim=2, num_heads=1, length=5, causal=causal).kernel
    q, k, v = (torch.randn(1, 1, 5, 2).double().requires_grad_() for _ in range(3))
    real = torch.tensor([[True, False, True, True, True]])
    assert torch.autograd.gradcheck(lambda q, k, v: kernel(q, k, v, real, query_mask=real), (q, k, v))


@every_kernel
def test_later_tokens_change_no_bit(build: Any, name: str) -> None:
    mixer = build({"kernel": KERNELS[name]}, dtype=torch.float32, length=150, causal=True)
    x = 3 * torch.randn(2, 150, 8)
    y = mixer(x)
    for t in (1, 5, 63, 64, 100):
        other = x.clone()
        other[:, t:] = 40 * torch.randn(2, 150 - t, 8)
        assert torch.equal(mixer(other)[:, :t], y[:, :t])


@every_kernel
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_steps_are_the_parallel_form(
    build: Any, largest_error: Any, name: str, dtype: torch.dtype, tolerance: float
) -> None:
    mixer = build({"kernel": KERNELS[name]}, dtype=dtype, length=70, causal=True)
    x = 2 * torch.randn(2, 70, 8, dtype=dtype)
    state = mixer.initial_state(2)
    sizes = {key: tensor.shape for key, tensor in state.items()}
    outputs = []
    for t in range(70):
        y, state = mixer.step(x[:, t], state)
        outputs.append(y)
    assert largest_error(torch.stack(outputs, 1), mixer(x)) < tolerance
    assert {key: tensor.shape for key, tensor in state.items()} == sizes


@every_kernel
@both_forms
def test_padding_changes_nothing(build: Any, largest_error: Any, name: str, causal: bool) -> None:
    mixer = build({"kernel": KERNELS[name]}, dtype=torch.float32, length=20, causal=causal)
    x = torch.randn(2, 20, 8)
    x[:, 9:] *= 100
    real = (torch.arange(20) < 9).expand(2, 20)
    assert largest_error(mixer(x, real)[:, :9], mixer(x[:, :9])) < 2e-6


@every_kernel
@both_forms
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("case", ["large", "negative", "jump", "identical", "one", "one_real", "zero"])
def test_extremes_are_finite(build: Any, name: str, causal: bool, autocast: bool, case: str) -> None:
    kernel = build({"kernel": KERNELS[name]}, dtype=torch.float32, length=70, causal=causal).kernel
    q, k, v = (torch.randn(2, 2, 1 if case == "one" else 70, 4) for _ in range(3))
    real = None
    if case == "large":
        q, k = 120 * q.sign(), 120 * k.sign()
    elif case == "negative":
        q, k = torch.full_like(q, -120), torch.full_like(k, -120)
    elif case == "jump":
        k = torch.where(torch.arange(70)[:, None] % 30 < 20, -120.0, 120.0).expand_as(k)
    elif case == "identical":
        q, k, v = (x[:, :, :1].expand_as(x) for x in (q, k, v))
    elif case == "one_real":
        real = (torch.arange(70) == 33).expand(2, 70)
    elif case == "zero":
        q, k = torch.zeros_like(q), torch.zeros_like(k)
    dtype = torch.bfloat16 if autocast else torch.float32
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = kernel(*leaves, real, query_mask=real)
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out.float().square().sum(), leaves):
        assert gradient.isfinite().all()


@both_forms
@pytest.mark.parametrize("scale", [30.0, 120.0])
def test_efficient_attention_keeps_its_digits_at_extremes(
    build: Any, errors_to_twin: Any, causal: bool, scale: float
) -> None:
    mixer = build({"kernel": "efficient"}, dtype=torch.float32, length=20, causal=causal)
    with torch.no_grad():
        mixer.qkv.weight[8:16] *= scale / mixer.qkv.weight[8:16].norm(dim=1, keepdim=True)
    forward, backward = errors_to_twin(mixer, torch.randn(1, 20, 8))
    assert forward < 1e-4
    assert backward < 1e-3


@every_kernel
@both_forms
def test_compiles_without_graph_breaks(build: Any, name: str, causal: bool) -> None:
    torch.compiler.reset()
    kernel = build({"kernel": KERNELS[name]}, dtype=torch.float32, length=9, causal=causal).kernel
    q, k, v = (torch.randn(2, 2, 9, 4).requires_grad_() for _ in range(3))
    real = torch.arange(9) < torch.tensor([[9], [5]])
    compiled = torch.compile(kernel, backend="aot_eager", fullgraph=True)
    out = compiled(q, k, v, real, query_mask=real)
    assert torch.allclose(out, kernel(q, k, v, real, query_mask=real), atol=1e-6)
    out.sum().backward()


@pytest.mark.parametrize("name", ["cosformer", "efficient", "efficient_kernel"])
@both_forms
def test_the_map_gives_the_outputs(build: Any, largest_error: Any, name: str, causal: bool) -> None:
    kernel = build({"kernel": KERNELS[name]}, length=13, causal=causal).kernel
    real = torch.arange(13) < torch.tensor([[13], [6]])
    q, k, v = (torch.randn(2, 2, 13, 4).double() for _ in range(3))
    out = kernel(q, k, v, real, query_mask=real)
    weights = kernel.weights(q, k, real, query_mask=real)
    assert largest_error(weights @ v, out) < 1e-12
    assert (weights.sum(-1) - 1).abs().max() < 1e-12 or name == "cosformer"
    assert not weights[1, :, :, 6:].any()


def test_cosformer_weights_fall_with_the_cosine_of_the_distance(build: Any) -> None:
    kernel = build({"kernel": "cosformer"}, dim=4, num_heads=1, length=10).kernel
    ones = torch.ones(1, 1, 10, 4).double()
    weights = kernel.weights(ones, ones)[0, 0]
    distance = torch.arange(10).double()
    assert torch.allclose(weights[0] / weights[0, 0], torch.cos(torch.pi / 2 * distance / 10))


def test_cosformer_far_from_its_largest_length_is_linear_attention(build: Any, largest_error: Any) -> None:
    kernel = build({"kernel": "cosformer"}, length=10**7, causal=True).kernel
    q, k, v = (torch.randn(1, 2, 12, 4).double() for _ in range(3))
    similarity = (q.relu() @ k.relu().mT).tril()
    total = similarity.sum(-1, keepdim=True)
    wanted = similarity @ v / torch.where(total == 0, 1, total)
    assert largest_error(kernel(q, k, v), wanted) < 1e-10


def test_cosformer_refuses_more_tokens_than_it_is_built_for(build: Any) -> None:
    mixer = build({"kernel": "cosformer"}, length=9, causal=True)
    with pytest.raises(ValueError, match="max_length=9"):
        mixer(torch.randn(1, 10, 8).double())


def test_cosformer_without_a_similar_key_gives_zero(build: Any) -> None:
    kernel = build({"kernel": "cosformer"}, dtype=torch.float32).kernel
    q, k, v = (torch.randn(1, 2, 9, 4).requires_grad_() for _ in range(3))
    out = kernel(q - 100, k, v)
    assert not out.any()
    assert not any(gradient.any() for gradient in torch.autograd.grad(out.sum(), (q, k, v)))


@every_kernel
def test_which_heads_can_be_downsampled(name: str) -> None:
    # Positions and flows are of tokens; a softmax over positions can be one over windows.
    options = {"kernel": KERNELS[name], "scaled_heads": {"scales": [1, 2]}}
    problems = MultiHeadAttention.problems(MixerSpec(8, 2, 9), **options)
    assert bool(problems) == (name in ("cosformer", "flowformer"))


def test_efficient_attention_has_two_causal_forms(build: Any, largest_error: Any) -> None:
    forms = {name: build({"kernel": KERNELS[name]}, causal=True).kernel for name in KERNELS if "efficient" in name}
    q, k, v = (torch.randn(1, 2, 9, 4).double() for _ in range(3))
    bidirectional = build({"kernel": "efficient"}).kernel(q, k, v)
    per_feature, kernel = (form(q, k, v) for form in forms.values())
    assert largest_error(per_feature[:, :, -1], bidirectional[:, :, -1]) < 1e-13
    assert largest_error(kernel[:, :, -1], bidirectional[:, :, -1]) > 1e-2
    features = k.exp()
    wanted = (q.exp() @ features.mT).tril() @ v / (q.exp() @ features.mT).tril().sum(-1, keepdim=True)
    assert largest_error(kernel, wanted) < 1e-13


def test_an_unknown_causal_form_is_refused() -> None:
    with pytest.raises(ReattendError, match="causal_normaliser"):
        MultiHeadAttention(MixerSpec(8, 2, 9), kernel={"name": "efficient", "causal_normaliser": "row"})


@both_forms
def test_equal_flows_give_the_mean(build: Any, largest_error: Any, causal: bool) -> None:
    # All flows are then equal, nothing competes, and every query is allocated sigmoid(1).
    kernel = build({"kernel": "flowformer"}, causal=causal).kernel
    q, k, v = (torch.randn(2, 2, 9, 4).double() for _ in range(3))
    q, k = q[:, :, :1].expand_as(q), k[:, :, :1].expand_as(k)
    mean = v.cumsum(2) / torch.arange(1, 10)[:, None] if causal else v.mean(2, keepdim=True).expand_as(v)
    assert largest_error(kernel(q, k, v), mean / (1 + torch.exp(torch.tensor(-1.0).double()))) < 1e-13


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130])
def test_cumulative_logsumexp_is_torchs(length: int) -> None:
    x = (5 * torch.randn(2, 1, length, 3)).double().requires_grad_()
    z, wanted = cumulative_logsumexp(x), x.logcumsumexp(2)
    assert torch.allclose(z, wanted, rtol=1e-13, atol=1e-13)
    cotangent = torch.randn_like(x)
    got = torch.autograd.grad(z, x, cotangent)[0]
    assert torch.allclose(got, torch.autograd.grad(wanted, x, cotangent)[0], atol=1e-11)


def test_cumulative_logsumexp_is_a_well_formed_operator() -> None:
    torch.library.opcheck(cumulative_logsumexp, (torch.randn(1, 2, 70, 3, requires_grad=True),))


def test_causal_feature_softmax_over_many_chunks() -> None:
    query, logits, value = (torch.randn(1, 2, 300, 3).double().requires_grad_() for _ in range(3))
    out = causal_feature_softmax(query, 2 * logits, value)
    weights = (2 * logits).exp().unsqueeze(-1)
    averages = (weights * value.unsqueeze(-2)).cumsum(2) / weights.cumsum(2)
    wanted = (query.unsqueeze(-1) * averages).sum(-2)
    assert torch.allclose(out, wanted, atol=1e-12)
    cotangent = torch.randn_like(out)
    leaves = (query, logits, value)
    got = torch.autograd.grad(out, leaves, cotangent)
    for gradient, right in zip(got, torch.autograd.grad(wanted, leaves, cotangent), strict=True):
        assert torch.allclose(gradient, right, atol=1e-11)


def test_causal_feature_softmax_with_far_apart_logits() -> None:
    # A key that is larger than all before it, by more than exp can hold, and then small ones again.
    logits = torch.tensor([0.0, -400.0, 500.0, 499.0, -1e4, 900.0, 899.0])[:, None].expand(1, 1, 7, 1)
    value = torch.randn(1, 1, 7, 2)
    out = causal_feature_softmax(torch.ones(1, 1, 7, 1), logits, value)
    wanted = torch.stack([logits[0, 0, : t + 1, 0].softmax(0) @ value[0, 0, : t + 1] for t in range(7)])
    assert torch.allclose(out[0, 0], wanted, atol=2e-4)  # The digits that a logit of 900 has.
