"""Softmax over the largest logits of each query."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.naive import multihead as naive
from reattend.attention.ops import top_k_attention as operator
from reattend.attention.ops.kept_logits import find_kept, kth_largest
from reattend.attention.ops.top_k_attention import top_k_attention
from reattend.errors import ReattendError

BN = {"recenter": {"beta": 0.6, "learnable": True, "std": True}}
SH = {"scaled_heads": {"scales": [1, 2]}}
BLOCK_SIZES = [2**21, 60]


def top_k(k: int) -> dict[str, Any]:
    return {"kernel": {"name": "top_k", "k": k}}


def mask(*real: float, length: int) -> Tensor:
    """Padding anywhere, with this share of real tokens in each sample."""
    return torch.rand(len(real), length) < torch.tensor(real)[:, None]


@pytest.fixture(params=BLOCK_SIZES, ids=["one block", "many blocks"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operator._LOGITS_PER_BLOCK, "cpu", request.param)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("k", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    build: Any, errors_to_twin: Any, k: int, causal: bool, padded: bool
) -> None:
    # With 21 keys, k = 1 and 2 search groups of logits, 3 and 5 sort them all; from 6 on blocks are dense.
    mixer = build(top_k(k), length=21, causal=causal)
    x = torch.randn(3, 21, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, mask(1.0, 0.6, 0.0, length=21) if padded else None)
    assert forward < 1e-10
    assert backward < 1e-9


@pytest.mark.parametrize(("slots", "causal"), [(BN, False), (BN, True), (SH, False), (BN | SH, False)])
@pytest.mark.parametrize("k", [1, 4])
def test_recentred_and_scaled_heads(
    build: Any, errors_to_twin: Any, slots: dict[str, Any], causal: bool, k: int
) -> None:
    mixer = build(top_k(k) | slots, length=13, causal=causal, prefix_tokens=1)
    x = torch.randn(3, 13, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, mask(1.0, 0.6, 0.0, length=13))
    assert forward < 1e-9
    assert backward < 1e-8


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("k", [1, 4])
def test_context(build: Any, errors_to_twin: Any, k: int) -> None:
    x, context = torch.randn(2, 7, 8, dtype=torch.float64), torch.randn(2, 17, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(build(top_k(k)), x, None, context, mask(1.0, 0.5, length=17))
    assert forward < 1e-10
    assert backward < 1e-9


@pytest.mark.parametrize("k", [2, 4])
def test_float32_is_near_the_twin(build: Any, errors_to_twin: Any, k: int) -> None:
    # No two logits are so close here that rounding decides which is kept.
    mixer = build(top_k(k), length=23, dtype=torch.float32)
    forward, backward = errors_to_twin(mixer, torch.randn(2, 23, 8))
    assert forward < 5e-6
    assert backward < 2e-5


@pytest.mark.parametrize("causal", [False, True])
def test_with_as_many_keys_as_kept_it_is_softmax(build: Any, causal: bool) -> None:
    x, real = torch.randn(2, 9, 8, dtype=torch.float64), mask(1.0, 0.6, length=9)
    softmax = build({"kernel": "softmax"}, causal=causal)
    for k in (9, 50):
        mixer = build(top_k(k), causal=causal)
        assert torch.allclose(mixer(x, real), softmax(x, real), atol=1e-12)
    # Five of 20 keys are real: a query that keeps five keeps all that it sees.
    q, key, v = torch.randn(3, 1, 2, 20, 4, dtype=torch.float64)
    real = torch.arange(20)[None] % 4 == 1
    out = top_k_attention(q, key, v, real, count=5)
    assert torch.allclose(out, torch.nn.functional.scaled_dot_product_attention(q, key[:, :, 1::4], v[:, :, 1::4]))


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_equal_logits_are_kept_together(count: int) -> None:
    values = torch.tensor([3.0, 1.0, 3.0, 0.0, 1.0, 1.0, -2.0, 3.0, 1.0, 0.0, -2.0, -5.0] + 12 * [-9.0])
    q, k = torch.ones(1, 1, 2, 1), values.view(1, 1, -1, 1)
    kept = values >= values.sort(descending=True).values[count - 1]
    expected = torch.where(kept, values, -math.inf).softmax(0)
    weights = top_k_attention(q, k, torch.eye(24)[None, None], count=count)[0, 0]
    assert torch.allclose(weights, expected.expand(2, -1))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("kind", ["normal", "few values", "constant", "masked"])
def test_what_is_kept(count: int, kind: str) -> None:
    logits = torch.randn(2, 7, 43)
    if kind == "few values":
        logits = logits.round()
    elif kind == "constant":
        logits = torch.zeros_like(logits)
    elif kind == "masked":
        logits[torch.rand_like(logits) < 0.9] = -math.inf
        logits[0, 0] = -math.inf
    lowest = torch.finfo(logits.dtype).min
    wanted = logits.sort(-1, descending=True).values[..., count - 1].clamp(min=lowest)
    kept, threshold = find_kept(logits, count)
    assert torch.equal(threshold, wanted)
    assert torch.equal(kth_largest(logits, count), wanted)
    head, query, key = (logits >= wanted[..., None]).nonzero().unbind(1)
    assert torch.equal(kept.rows, head * 7 + query)
    assert torch.equal(kept.columns, head * 43 + key)


def test_the_gradient_flows_through_kept_logits_alone() -> None:
    q, k, v = torch.randn(3, 1, 1, 20, 4, dtype=torch.float64).unbind()
    q = q[:, :, :1]
    kept = (q @ k.mT)[0, 0, 0].topk(3).indices
    k.requires_grad_(), v.requires_grad_()
    top_k_attention(q, k, v, count=3)[..., 0].sum().backward()
    for gradient in (k.grad, v.grad):
        assert gradient is not None
        assert sorted(gradient[0, 0].abs().sum(-1).nonzero()[:, 0].tolist()) == sorted(kept.tolist())


@pytest.mark.parametrize("k", [1, 3])
def test_a_vector_that_is_added_to_all_keys_changes_nothing(k: int) -> None:
    q, key, v = torch.randn(3, 1, 2, 12, 4, dtype=torch.float64)
    shifted = key + torch.randn(4, dtype=torch.float64)
    assert torch.allclose(top_k_attention(q, shifted, v, count=k), top_k_attention(q, key, v, count=k))


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("k", [1, 4])
def test_earlier_outputs_are_blind_to_later_tokens(build: Any, k: int) -> None:
    mixer = build(top_k(k) | BN, length=19, dtype=torch.float32, causal=True)
    x = torch.randn(2, 19, 8)
    before = mixer(x)
    for t in (1, 7, 18):
        later = x.clone()
        later[:, t:] = 100 * torch.randn_like(later[:, t:])
        assert torch.equal(mixer(later)[:, :t], before[:, :t])


@pytest.mark.parametrize("slots", [{}, BN], ids=["", "bn"])
def test_steps_are_the_parallel_form(build: Any, slots: dict[str, Any]) -> None:
    mixer = build(top_k(3) | slots, length=11, causal=True)
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    state, outputs = mixer.initial_state(2), []
    for t in range(11):
        y, state = mixer.step(x[:, t], state)
        outputs.append(y)
        assert state["keys"].shape[2] == t + 1
    assert torch.allclose(torch.stack(outputs, 1), mixer(x), atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_map_gives_the_output_and_has_k_weights(build: Any, causal: bool) -> None:
    mixer = build(top_k(3), causal=causal)
    x, real = torch.randn(2, 9, 8, dtype=torch.float64), mask(1.0, 0.7, length=9)
    weights = mixer.attention_map(x, real)
    value = mixer.qkv(x)[..., 16:].unflatten(2, (2, 4)).transpose(1, 2)
    output = mixer.proj((weights @ value).transpose(1, 2).flatten(2))
    assert torch.allclose(output, mixer(x, real), atol=1e-12)
    visible = real[:, None, None, :].expand(-1, 2, 9, -1)
    visible = visible.tril() if causal else visible
    assert torch.equal((weights > 0).sum(-1), visible.sum(-1).clamp(max=3))


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("k", [1, 3])
def test_gradcheck(k: int) -> None:
    # The step of finite differences must not change which logits are kept.
    torch.manual_seed(1)
    tensors = [t.requires_grad_() for t in torch.randn(3, 1, 2, 9, 3, dtype=torch.float64).unbind()]
    real = (torch.arange(9) != 4).unsqueeze(0)
    assert torch.autograd.gradcheck(lambda *t: top_k_attention(*t, real, count=k), tensors)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("k", [1, 4])
def test_extremes_are_finite(build: Any, k: int, autocast: bool) -> None:
    mixer = build(top_k(k) | BN, length=12, dtype=torch.float32)
    real = torch.zeros(3, 12, dtype=torch.bool)
    real[0], real[1, 3] = True, True
    for x in (torch.full((3, 12, 8), 120.0), 120 * torch.randn(3, 12, 8).sign()):
        x.requires_grad_().grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = mixer(x, real)
        y.float().sum().backward()
        assert y.isfinite().all()
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert not y[2].any()


@pytest.mark.parametrize("k", [1, 6])
def test_half_precision_keeps_its_logits_in_float32(k: int) -> None:
    q, key, v = torch.randn(3, 2, 2, 40, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = top_k_attention(q, key, v, count=k)
    assert out.dtype == torch.bfloat16
    exact = top_k_attention(q.double(), key.double(), v.double(), count=k)
    assert (out.double() - exact).abs().max() < 3e-2


def test_autocast_is_near_the_twin(build: Any, largest_error: Any) -> None:
    mixer = build(top_k(20), length=40, dtype=torch.float32)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(parameter.bfloat16())
    x = torch.randn(2, 40, 8).bfloat16().float()
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)
    # Rounding may keep another key than the twin does, of a logit and so a weight next to that of the twin's.
    assert largest_error(y, naive.forward(mixer, x)) < 5e-2


def test_compiles_without_graph_breaks(build: Any) -> None:
    mixer = build(top_k(2), length=12, dtype=torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    x, real = torch.randn(2, 12, 8), mask(1.0, 0.7, length=12)
    gradients = []
    for forward in (mixer, compiled):
        leaf = x.clone().requires_grad_()
        forward(leaf, real).square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.allclose(*gradients, atol=1e-6)


@pytest.mark.parametrize("grad", [False, True])
def test_the_operator_keeps_the_rules_of_operators(grad: bool) -> None:
    q, k, v = (t.requires_grad_(grad) for t in torch.randn(3, 2, 2, 9, 4))
    torch.library.opcheck(operator._attend, (q, k, v, mask(1.0, 0.6, length=9), 2, False))


def test_no_weights_are_formed(build: Any) -> None:
    """Between forward and backward pass nothing is kept that grows with the product of the lengths."""
    mixer = build(top_k(4), length=500, dtype=torch.float32)
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        mixer(torch.randn(1, 500, 8))
    assert max(sizes) <= 500 * 24


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (top_k(0), "k=0 must be 1 or larger"),
        ({"kernel": {"name": "top_k", "k": 2.5}}, "must be a whole number"),
        (top_k(8) | {"dropout": 0.1}, "no weights to drop"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ReattendError, match=problem):
        MultiHeadAttention(MixerSpec(8, 2, 9), **options)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_x_transformers_top_k(causal: bool, k: int) -> None:
    attend = pytest.importorskip("x_transformers.attend")
    q, key, v = torch.randn(3, 2, 2, 20, 4)
    theirs, _ = attend.Attend(causal=causal, sparse_topk=k)(q, key, v)
    assert torch.allclose(top_k_attention(q, key, v, count=k, causal=causal), theirs, atol=1e-5)
