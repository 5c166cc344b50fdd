"""Reformer against its twin, in special cases that are plain attention, under extremes, and against Hugging Face's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerFactory, MixerSpec, naive
from reattend.attention.ops.hashing import bucket_factors, cross_polytope, order_by_bucket
from reattend.attention.reformer import Reformer

DTYPE = torch.float64


def build(
    *,
    dim: int = 8,
    num_heads: int = 2,
    length: int = 13,
    causal: bool = False,
    dtype: torch.dtype = DTYPE,
    seed: int = 0,
    **options: Any,
) -> Reformer:
    torch.manual_seed(seed)
    options = {"chunk_size": 3, "num_rounds": 3, "num_buckets": 4, **options}
    mixer = Reformer(MixerSpec(dim, num_heads, length, causal=causal), **options).to(dtype)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return mixer


def errors(mixer: Reformer, x: Tensor, mask: Tensor | None, largest_error: Callable[..., float]) -> tuple[float, float]:
    leaves = [x.requires_grad_(), *mixer.parameters()]
    y, twin = mixer(x, mask), naive.forward(mixer, x, mask)
    twin = twin + 0.0 * sum(leaf.sum() for leaf in leaves)  # Without a real token it depends on none of them.
    cotangent = torch.randn_like(twin)
    got = torch.autograd.grad((y * cotangent).sum(), leaves)
    wanted = torch.autograd.grad((twin * cotangent).sum(), leaves)
    floor = 0.01 * max(w.abs().max().item() for w in wanted)
    return largest_error(y, twin), max(largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True))


def full_attention(mixer: Reformer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of shared queries and keys to all other tokens."""
    q, v = (layer(x).unflatten(-1, (mixer.spec.num_heads, -1)).transpose(1, 2) for layer in (mixer.qk, mixer.v))
    logits = q @ (q / q.norm(dim=-1, keepdim=True)).mT
    hidden = torch.eye(x.shape[1], dtype=torch.bool)
    if mixer.spec.causal:
        hidden = torch.ones_like(hidden).triu()
        hidden[0, 0] = False
    if mask is not None:
        hidden = hidden | ~mask[:, None, None]
    out = logits.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    return mixer.proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True, "num_buckets": [2, 4], "chunk_size": 2},
        {"attend_across_buckets": False},
        {"count_duplicates": False, "num_rounds": 5},
        {"attend_across_buckets": False, "count_duplicates": False, "bias": True},
        {"chunk_size": 1, "num_rounds": 2},
        {"chunk_size": 64, "num_rounds": 1},
    ],
)
def test_outputs_and_gradients_are_the_twins(
    options: dict[str, Any], padded: bool, causal: bool, largest_error: Callable[..., float]
) -> None:
    for length in (1, 6, 13):
        mixer = build(causal=causal, length=length, **options)
        x = torch.randn(3, length, 8, dtype=DTYPE)
        mask = torch.rand(3, length) < torch.tensor([0.8, 0.3, 0.0])[:, None] if padded else None
        forward, backward = errors(mixer, x, mask, largest_error)
        assert forward < 1e-12
        assert backward < 1e-11


@pytest.mark.parametrize("causal", [False, True])
def test_float32_is_near_the_twin(causal: bool, largest_error: Callable[..., float]) -> None:
    mixer = build(causal=causal, length=29, dtype=torch.float32, chunk_size=4)
    mask = torch.rand(3, 29) < 0.8
    forward, backward = errors(mixer, torch.randn(3, 29, 8), mask, largest_error)
    assert forward < 5e-6
    assert backward < 2e-5


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{}, {"count_duplicates": False, "attend_across_buckets": False}])
def test_gradcheck(options: dict[str, Any], causal: bool) -> None:
    mixer = build(dim=4, length=5, causal=causal, chunk_size=2, bias=True, **options)
    real = torch.tensor([[True, True, False, True, True]])
    x = torch.randn(1, 5, 4, dtype=DTYPE, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, real))

    assert torch.autograd.gradcheck(run, (x, *mixer.parameters()))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{"chunk_size": 11}, {"chunk_size": 32}, {"chunk_size": 11, "num_rounds": 1}])
def test_one_chunk_is_attention_to_all_others(causal: bool, options: dict[str, Any]) -> None:
    mixer = build(causal=causal, **options)
    x = torch.randn(2, 11, 8, dtype=DTYPE)
    assert torch.allclose(mixer(x), full_attention(mixer, x), rtol=0, atol=1e-12)


def test_many_rounds_without_duplicates_are_attention_to_all_others() -> None:
    mixer = build(chunk_size=4, num_rounds=80, count_duplicates=False)
    x = torch.randn(2, 11, 8, dtype=DTYPE)
    assert torch.allclose(mixer(x), full_attention(mixer, x), rtol=0, atol=1e-12)
    mixer.count_duplicates = True
    assert not torch.allclose(mixer(x), full_attention(mixer, x), rtol=0, atol=1e-3)


def test_a_token_without_others_has_its_own_value() -> None:
    mixer = build(causal=True, chunk_size=1)
    x = torch.randn(2, 1, 8, dtype=DTYPE)
    assert torch.allclose(mixer(x), mixer.proj(mixer.v(x)), rtol=0, atol=1e-14)
    x = torch.randn(2, 9, 8, dtype=DTYPE)
    assert torch.allclose(mixer(x)[:, 0], mixer.proj(mixer.v(x))[:, 0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, DTYPE])
def test_padding_changes_nothing(causal: bool, dtype: torch.dtype) -> None:
    mixer = build(causal=causal, dtype=dtype)
    x, more = torch.randn(2, 13, 8, dtype=dtype), 100 * torch.randn(2, 9, 8, dtype=dtype)
    places = torch.randperm(22).argsort()
    tokens = torch.cat([x, more], 1)
    mask = torch.zeros(2, 22, dtype=torch.bool)
    mask[:, :13] = True
    keep = torch.cat([places[:13].sort().values, places[13:]])  # Real tokens in their order, padding among them.
    spread, spread_mask = torch.empty_like(tokens), torch.empty_like(mask)
    spread[:, keep], spread_mask[:, keep] = tokens, mask
    wanted = mixer(x)
    assert torch.allclose(mixer(tokens, mask)[:, :13], wanted, atol=1e-5)
    assert torch.allclose(mixer(spread, spread_mask)[:, keep[:13]], wanted, atol=1e-5)


def test_later_values_are_not_seen() -> None:
    mixer = build(causal=True, dim=4)
    x = torch.randn(1, 13, 4, dtype=DTYPE)
    jacobian = torch.autograd.functional.jacobian(lambda x: mixer(x).sum((0, 2)), x)[:, 0].abs().sum(-1)
    assert (jacobian.triu(1) == 0).all()
    assert (jacobian.diagonal() > 0).all()


def test_hashing_is_plain() -> None:
    torch.manual_seed(0)
    x, rotations = torch.randn(2, 3, 17, 5), torch.randn(4, 3, 5, 5)
    buckets = cross_polytope(x, rotations, [4, 6])
    for h in range(3):
        for r in range(4):
            rotated = x[:, h] @ rotations[r, h]
            low, high = (torch.cat([part, -part], -1).argmax(-1) for part in rotated.split([2, 3], -1))
            assert torch.equal(buckets[r, :, h], low + 4 * high)
    real = torch.rand(2, 17) < 0.6
    order = order_by_bucket(buckets, 24, real)
    for b in range(2):
        expected = sorted(range(17), key=lambda t: (not real[b, t], real[b, t] and buckets[1, b, 2, t].item(), t))
        assert order[1, b, 2].tolist() == expected


def test_vectors_of_a_small_angle_share_a_bucket() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1, 2000, 16)
    rotations = torch.randn(1, 1, 16, 8)
    near, far = x + 0.05 * torch.randn_like(x), torch.randn_like(x)
    same = [
        (cross_polytope(x, rotations, [16]) == cross_polytope(y, rotations, [16])).float().mean() for y in (near, far)
    ]
    assert same[0] > 0.9
    assert abs(same[1] - 1 / 16) < 0.03
    assert torch.equal(cross_polytope(x, rotations, [16]), cross_polytope(7 * x, rotations, [16]))


def test_number_of_buckets() -> None:
    assert bucket_factors(64, 64) == [2]
    assert bucket_factors(10, 64) == [2]
    assert bucket_factors(4096, 64) == [128]
    assert bucket_factors(4159, 64) == [128]
    assert bucket_factors(16384, 64) == [16, 32]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 120.0])
def test_extremes_are_finite(scale: float, autocast: bool, causal: bool) -> None:
    mixer = build(causal=causal, dtype=torch.float32)
    with torch.no_grad():
        mixer.qk.weight.copy_(torch.eye(8))
    masks = torch.ones(4, 13, dtype=torch.bool)
    masks[1], masks[2, 1:], masks[3, :12] = False, False, False
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


def test_large_queries_are_near_the_twin(largest_error: Callable[..., float]) -> None:
    mixer = build(dtype=torch.float32)
    x = torch.randn(2, 13, 8)
    with torch.no_grad():
        mixer.qk.weight.mul_(120 / mixer.qk(x).norm(dim=-1).mean())
    assert errors(mixer, x, None, largest_error)[0] < 1e-3


def test_bfloat16_is_near_the_twin_on_rounded_inputs(largest_error: Callable[..., float]) -> None:
    mixer = build().to(torch.bfloat16)
    x = torch.randn(2, 13, 8).to(torch.bfloat16)
    with torch.no_grad():
        mixer.qk.weight.copy_(torch.eye(8)), mixer.rotations.copy_(mixer.rotations.to(torch.bfloat16))
    assert largest_error(mixer(x), naive.forward(mixer, x)) < 3e-2


@pytest.mark.parametrize("causal", [False, True])
def test_compiles_without_graph_breaks(causal: bool) -> None:
    mixer = build(causal=causal, dtype=torch.float32)
    x, mask = torch.randn(2, 13, 8, requires_grad=True), torch.rand(2, 13) < 0.8
    y = mixer(x, mask)
    (wanted,) = torch.autograd.grad(y.square().sum(), x)
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)(x, mask)
    assert torch.equal(y, compiled)
    assert torch.allclose(torch.autograd.grad(compiled.square().sum(), x)[0], wanted, atol=1e-6)


def test_rotations_are_kept_or_drawn_anew() -> None:
    mixer = build(length=40, chunk_size=2)
    x = torch.randn(1, 40, 8, dtype=DTYPE)
    assert torch.equal(mixer(x), mixer(x))
    copy = build(length=40, chunk_size=2, seed=1)
    copy.load_state_dict(mixer.state_dict())
    assert torch.equal(mixer(x), copy(x))
    redrawing = build(length=40, chunk_size=2, redraw=True)
    assert not torch.equal(redrawing(x), redrawing(x))
    assert torch.equal(redrawing.eval()(x), mixer(x))


def test_problems_are_told() -> None:
    spec = MixerSpec(8, 2, 13)
    for options, word in (
        ({"chunk_size": 0}, "chunk_size=0"),
        ({"num_rounds": 0}, "num_rounds=0"),
        ({"num_buckets": 5}, "num_buckets=5"),
        ({"num_buckets": [4, 3]}, "num_buckets=[4, 3]"),
        ({"num_buckets": []}, "num_buckets=[]"),
        ({"rounds": 2}, "rounds"),
    ):
        (problem,) = MixerFactory(Reformer, options).problems(spec)
        assert word in problem
    with pytest.raises(ValueError, match="no context"):
        build()(torch.randn(1, 3, 8, dtype=DTYPE), context=torch.randn(1, 3, 8, dtype=DTYPE))
    with pytest.raises(ValueError, match="bool"):
        build()(torch.randn(1, 3, 8, dtype=DTYPE), torch.ones(1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [32, 8])
def test_hugging_face_reformer_is_the_same(causal: bool, length: int) -> None:
    # In one chunk, and with one round of the same rotations wherever its first chunk's wrapping around is not seen.
    modeling = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    configuration = pytest.importorskip("transformers").ReformerConfig(
        hidden_size=8,
        num_attention_heads=2,
        attention_head_size=4,
        lsh_attn_chunk_length=8,
        num_buckets=6,
        num_hashes=1,
        hash_seed=5,
        is_decoder=causal,
        lsh_attention_probs_dropout_prob=0.0,
    )
    theirs = modeling.LSHSelfAttention(configuration).eval()
    ours = build(causal=causal, length=length, dtype=torch.float32, chunk_size=8, num_rounds=1, num_buckets=6)
    with torch.no_grad():
        theirs.query_key.weight.copy_(ours.qk.weight), theirs.value.weight.copy_(ours.v.weight)
        ours.proj.weight.copy_(torch.eye(8))
        torch.manual_seed(5)
        ours.rotations.copy_(torch.randn(2, 4, 1, 3).permute(2, 0, 1, 3))
    x = torch.randn(2, length, 8)
    seen = torch.ones(2, 2, length, dtype=torch.bool)
    if length > 8:
        q = ours.qk(x).unflatten(-1, (2, 4)).transpose(1, 2)
        order = order_by_bucket(cross_polytope(q, ours.rotations, [6]), 6)[0]
        seen.scatter_(2, order[..., :8], False)
    result = theirs(x, attention_mask=None).hidden_states.unflatten(-1, (2, 4)).transpose(1, 2)
    got = ours(x).unflatten(-1, (2, 4)).transpose(1, 2)
    assert seen.float().mean() >= 0.75
    assert torch.allclose(got[seen], result[seen], atol=1e-4)  # They add 1e-6 to the squared length of a key.


def test_flops_are_linear_in_length_beyond_a_chunk() -> None:
    mixer = Reformer(MixerSpec(64, 2, 4096))
    assert mixer.flops(4096) == 2 * mixer.flops(2048)
    assert math.isclose(mixer.flops(4096) / 4096, 2 * 3 * 64**2 + 8 * 128 * 64 + 4 * 8 * 128 * 64)
