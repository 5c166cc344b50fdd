"""Longformer against its twin, as masked softmax, and against Hugging Face's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, longformer, naive
from reattend.attention.longformer import Longformer
from reattend.errors import ReattendError


@pytest.fixture
def blocks_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences in many blocks; with the true smallest block they are one."""
    monkeypatch.setattr(longformer, "SMALLEST_BLOCK", 2)


def build(
    length: int = 13, dtype: torch.dtype = torch.float64, causal: bool = False, prefix: int = 0, **options: Any
) -> Longformer:
    torch.manual_seed(0)
    mixer = Longformer(MixerSpec(8, 2, length, causal=causal, prefix_tokens=prefix), **options).to(dtype)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return mixer


def padding(length: int) -> Tensor:
    # Anywhere, not at the end alone, and a sample without a real token.
    return torch.rand(3, length) < torch.tensor([0.8, 0.4, 0.0])[:, None]


@pytest.mark.parametrize("window", [1, 2, 5, 40])
@pytest.mark.parametrize(("num_global", "causal"), [(0, False), (1, False), (3, False), (0, True)])
@pytest.mark.parametrize("length", [1, 4, 13])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    largest_error: Any, blocks_of_two: None, window: int, num_global: int, length: int, padded: bool, causal: bool
) -> None:
    mixer = build(length, window=window, num_global=num_global, causal=causal)
    x = torch.randn(3, length, 8, dtype=torch.float64, requires_grad=True)
    mask = padding(length) if padded else None
    leaves = [x, *mixer.parameters()]
    pair = [y + 0.0 * sum(leaf.sum() for leaf in leaves) for y in (mixer(x, mask), naive.forward(mixer, x, mask))]
    cotangent = torch.randn_like(x)
    got, wanted = (torch.autograd.grad((y * cotangent).sum(), leaves) for y in pair)
    floor = 0.01 * max(w.abs().max().item() for w in wanted)
    assert largest_error(*pair) < 1e-10
    assert max(largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True)) < 1e-9


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [70, 131])
def test_float32_is_near_masked_softmax_in_blocks_of_64(causal: bool, length: int) -> None:
    mixer = build(length, torch.float32, window=20, causal=causal)
    x, real = torch.randn(3, length, 8), padding(length)
    for mask in (None, real):
        weights = mixer.attention_map(x, mask)
        (v,) = mixer._heads(mixer.qkv, x, 2, 3)
        out = weights @ v
        if mixer.qkv_global is not None:
            (v,) = mixer._heads(mixer.qkv_global, x, 2, 3)
            out = torch.cat([(weights @ v)[:, :, :1], out[:, :, 1:]], dim=2)
        wanted = mixer._merge(out)
        if mask is not None:
            wanted = wanted.masked_fill(~mask.any(1)[:, None, None], 0.0)
        assert torch.allclose(mixer(x, mask), wanted, atol=3e-6)


def test_a_window_of_all_tokens_is_softmax() -> None:
    x, real = torch.randn(3, 13, 8, dtype=torch.float64), padding(13)
    for causal in (False, True):
        mixer = build(window=26, num_global=0, causal=causal)
        q, k, v = mixer._heads(mixer.qkv, x, 0, 3)
        mask = real[:, None, None].expand(3, 1, 13, 13)
        mask = mask.tril() if causal else mask
        blind = ~mask.any(-1, keepdim=True)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask | blind).masked_fill(blind, 0.0)
        wanted = mixer._merge(out).masked_fill(~real.any(1)[:, None, None], 0.0)
        assert torch.allclose(mixer(x, real), wanted, atol=1e-12)


@pytest.mark.parametrize("num_global", [0, 2])
def test_the_attention_map_is_window_and_global_tokens(num_global: int) -> None:
    weights = build(window=4, num_global=num_global).attention_map(torch.randn(1, 13, 8, dtype=torch.float64))
    seen = torch.tensor([[abs(i - j) <= 2 or i < num_global or j < num_global for j in range(13)] for i in range(13)])
    assert torch.equal(weights[0] > 0, seen.expand(2, 13, 13))
    assert torch.allclose(weights.sum(-1), torch.ones(()).double())


def test_padding_changes_nothing(blocks_of_two: None) -> None:
    mixer = build(window=4, num_global=2)
    x = torch.randn(2, 10, 8, dtype=torch.float64)
    for extra in (1, 20):
        padded = torch.cat([x, 100 * torch.randn(2, extra, 8, dtype=torch.float64)], dim=1)
        real = torch.arange(10 + extra).expand(2, -1) < 10
        assert torch.allclose(mixer(padded, real)[:, :10], mixer(x), atol=1e-12)


@pytest.mark.parametrize("length", [11, 150])
def test_the_future_does_not_move_a_bit(length: int) -> None:
    mixer = build(length, torch.float32, window=7, causal=True)
    x = torch.randn(2, length, 8)
    for t in (1, 4, length - 1):
        other = x.clone()
        other[:, t:] = 50 * torch.randn_like(x[:, t:])
        assert torch.equal(mixer(x)[:, :t], mixer(other)[:, :t])


@pytest.mark.parametrize("window", [1, 4, 30])
def test_steps_are_the_causal_form_with_a_state_of_the_window(window: int) -> None:
    mixer = build(window=window, causal=True)
    x = torch.randn(2, 13, 8, dtype=torch.float64)
    state, outs = mixer.initial_state(2), []
    sizes = {name: t.shape for name, t in state.items()}
    for t in range(13):
        y, state = mixer.step(x[:, t], state)
        outs.append(y)
        assert {name: t.shape for name, t in state.items()} == sizes
    assert torch.allclose(torch.stack(outs, dim=1), mixer(x), atol=1e-12)
    assert sizes["keys"][2] == window
    with pytest.raises(ValueError, match="causal=True"):
        build(window=window).step(x[:, 0], state)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_extreme_inputs_stay_finite(autocast: bool, causal: bool) -> None:
    mixer = build(9, torch.float32, window=4, causal=causal)
    x = torch.randn(4, 9, 8)
    x[0] *= 120 / x[0].abs().max()
    x[1] = x[1, :1]
    real = torch.ones(4, 9, dtype=torch.bool)
    real[2, 1:] = False
    real[3] = False
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = mixer(x, real)
    gradients = torch.autograd.grad(y.float().square().sum(), [x, *mixer.parameters()])
    assert all(t.isfinite().all() for t in (y, *gradients))
    assert not y[3].any()


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_is_near_float64(largest_error: Any, causal: bool) -> None:
    mixer = build(13, torch.float32, window=4, causal=causal)
    x = torch.randn(2, 13, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = mixer(x)
    assert largest_error(y, mixer.double()(x.double())) < 3e-2


def test_gradcheck(blocks_of_two: None) -> None:
    mixer = build(6, window=2, num_global=1)
    real = torch.tensor([[True, True, False, True, True, True]])
    x = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mixer(x, real), x)


def test_compiles_without_a_graph_break() -> None:
    mixer = build(9, torch.float32, window=4)
    x, real = torch.randn(3, 9, 8), padding(9)
    torch._dynamo.reset()
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    wanted = torch.autograd.grad(mixer(x, real).square().sum(), list(mixer.parameters()))
    got = torch.autograd.grad(compiled(x, real).square().sum(), list(mixer.parameters()))
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_defaults_fit_the_place() -> None:
    mixer = Longformer(MixerSpec(8, 2, 4096))
    assert (mixer.window, mixer.num_global) == (128, 1)
    assert mixer.qkv_global is not None
    assert torch.equal(mixer.qkv_global.weight, mixer.qkv.weight)
    assert Longformer(MixerSpec(8, 2, 4096, prefix_tokens=2)).num_global == 2
    causal = Longformer(MixerSpec(8, 2, 4096, causal=True))
    assert (causal.window, causal.num_global, causal.qkv_global) == (64, 0, None)


@pytest.mark.parametrize(
    ("options", "causal", "reason"),
    [
        ({"num_global": 1}, True, "set num_global=0"),
        ({"window": 0}, False, "window=0 must be at least 1"),
        ({"num_global": -1}, False, "num_global=-1 must not be negative"),
    ],
)
def test_what_cannot_be_built_is_refused(options: Any, causal: bool, reason: str) -> None:
    with pytest.raises(ReattendError, match=reason):
        Longformer(MixerSpec(8, 2, 9, causal=causal), **options)


def test_capabilities_follow_the_global_tokens() -> None:
    assert Longformer.capabilities().causal
    assert Longformer.capabilities(num_global=0).constant_state
    assert not Longformer.capabilities(num_global=2).causal
    assert not Longformer.capabilities().context
    with pytest.raises(ValueError, match="takes no context"):
        build()(torch.randn(1, 13, 8).double(), None, torch.randn(1, 13, 8).double())


@pytest.mark.slow
@pytest.mark.parametrize("num_global", [0, 1, 3])
def test_hugging_face_computes_the_same(num_global: int) -> None:
    """Their sliding chunks ask for a length that is a multiple of the window."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = transformers.LongformerConfig(
        hidden_size=8, num_attention_heads=2, attention_window=[4], attention_probs_dropout_prob=0.0
    )
    theirs = LongformerSelfAttention(config, layer_id=0).double()
    ours = build(16, window=4, num_global=num_global)
    with torch.no_grad():
        torch.nn.init.eye_(ours.proj.weight)
        ours.proj.bias.zero_()
        for suffix, layer in (("", ours.qkv), ("_global", ours.qkv_global)):
            if layer is not None:
                for name, weight, bias in zip(
                    ("query", "key", "value"), layer.weight.chunk(3), layer.bias.chunk(3), strict=True
                ):
                    getattr(theirs, name + suffix).load_state_dict({"weight": weight, "bias": bias})
    x = torch.randn(2, 16, 8, dtype=torch.float64)
    real = torch.arange(16) < torch.tensor([[16], [11]])
    mask = torch.where(real, 0.0, -10000.0).double()
    mask[:, :num_global] = 10000.0
    wanted = theirs(
        x,
        attention_mask=mask,
        is_index_masked=mask < 0,
        is_index_global_attn=mask > 0,
        is_global_attn=num_global > 0,
    )[0]
    assert torch.allclose(ours(x, real)[real], wanted[real], atol=1e-5)  # Their softmax is float32.
