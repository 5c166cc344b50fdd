"""AFT-full, -local and -simple against their twins, each other, and RWKV."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, naive
from reattend.attention.aft import local
from reattend.attention.aft.full import AFTFull
from reattend.attention.aft.local import AFTLocal
from reattend.attention.aft.mixer import AFTMixer
from reattend.attention.aft.simple import AFTSimple
from reattend.attention.contract import split_losses
from reattend.errors import ReattendError

KINDS: list[Any] = [
    pytest.param(AFTSimple, {}, id="simple"),
    pytest.param(AFTFull, {}, id="full"),
    pytest.param(AFTFull, {"bias_rank": 3}, id="full-factorised"),
    pytest.param(AFTLocal, {"window": 3}, id="local"),
    pytest.param(AFTLocal, {"window": 3, "bias_rank": 2}, id="local-factorised"),
    pytest.param(AFTLocal, {"window": 2, "outside": "minus_infinity"}, id="local-alone"),
]


def build(
    kind: type[AFTMixer], length: int = 11, dtype: torch.dtype = torch.float64, causal: bool = False, **options: Any
) -> AFTMixer:
    torch.manual_seed(0)
    mixer = kind(MixerSpec(8, 2, length, causal=causal), **options).to(dtype)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return mixer


def output(mixer: AFTMixer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return split_losses(mixer(x, mask))[0]


def padding(length: int) -> Tensor:
    # Anywhere, not at the end alone, and a sample without a real token.
    return torch.rand(3, length) < torch.tensor([0.8, 0.4, 0.0])[:, None]


@pytest.fixture(params=[0, 100], ids=["tiles", "dense"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of a window, whatever the length."""
    monkeypatch.setattr(local, "DENSE", request.param)


def assert_is_twin(largest_error: Any, mixer: AFTMixer, length: int, padded: bool) -> None:
    x = torch.randn(3, length, 8, dtype=torch.float64, requires_grad=True)
    mask = padding(length) if padded else None
    leaves = [x, *mixer.parameters()]
    pair = output(mixer, x, mask), naive.forward(mixer, x, mask)
    assert pair[0].shape == pair[1].shape
    pair = tuple(y + 0.0 * sum(leaf.sum() for leaf in leaves) for y in pair)
    cotangent = torch.randn_like(x)
    got, wanted = (torch.autograd.grad((y * cotangent).sum(), leaves) for y in pair)
    floor = 0.01 * max(w.abs().max().item() for w in wanted)
    assert largest_error(*pair) < 1e-11
    assert max(largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True)) < 1e-10


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 11])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    largest_error: Any, form: None, kind: Any, options: Any, length: int, padded: bool, causal: bool
) -> None:
    assert_is_twin(largest_error, build(kind, 11, causal=causal, **options), length, padded)


@pytest.mark.parametrize("activation", ["tanh", "relu", "softplus", "identity", "none"])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_other_gates_sums_and_no_projection_are_the_twins(
    largest_error: Any, activation: str, normalised: bool, causal: bool
) -> None:
    for kind, options in ((AFTSimple, {}), (AFTFull, {"qkv_bias": False})):
        options = {"query_activation": activation, "normalised": normalised, "output_projection": causal, **options}
        assert_is_twin(largest_error, build(kind, 7, causal=causal, **options), 7, True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rank", [None, 3])
def test_local_is_full_at_the_full_window_and_simple_at_none(form: None, causal: bool, rank: int | None) -> None:
    x, mask = torch.randn(3, 11, 8, dtype=torch.float64), padding(11)
    simple, full = build(AFTSimple, causal=causal), build(AFTFull, causal=causal, bias_rank=rank)
    none = AFTLocal(MixerSpec(8, 2, 11, causal=causal), window=0, bias_rank=rank).double()
    none.load_state_dict(simple.state_dict())
    assert torch.equal(output(none, x, mask), output(simple, x, mask))
    whole = AFTLocal(MixerSpec(8, 2, 11, causal=causal), window=40, bias_rank=rank).double()
    assert whole.window == 11
    with torch.no_grad():
        state = full.state_dict()
        if rank is None:
            width = 11 if causal else 21
            at = torch.arange(11)[:, None] + torch.arange(width) - 10
            state["bias.weight"] = state["bias.weight"].gather(1, at.clamp(0, 10))
        whole.load_state_dict(state)
    assert torch.allclose(output(whole, x, mask), output(full, x, mask), atol=1e-12)
    assert torch.allclose(whole.position_bias(11), full.position_bias(11))


def test_a_constant_bias_is_no_bias() -> None:
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    for causal in (False, True):
        simple, full = build(AFTSimple, causal=causal), build(AFTFull, causal=causal)
        full.load_state_dict({**simple.state_dict(), "bias.weight": torch.full((11, 11), 0.7)})
        assert torch.allclose(output(full, x), output(simple, x), atol=1e-13)


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("length", [11, 90])
def test_the_future_does_not_move_a_bit(kind: Any, options: Any, length: int) -> None:
    mixer = build(kind, length, torch.float32, causal=True, **options)
    x = torch.randn(2, length, 8)
    for t in (1, 4, length - 1):
        for size in (1, 100):
            other = x.clone()
            other[:, t:] = size * torch.randn_like(x[:, t:])
            assert torch.equal(output(mixer, x)[:, :t], output(mixer, other)[:, :t])


@pytest.mark.parametrize(("kind", "options"), [*KINDS, pytest.param(AFTLocal, {"window": 0}, id="local-simple")])
@pytest.mark.parametrize("normalised", [False, True])
def test_steps_are_the_causal_form(kind: Any, options: Any, normalised: bool) -> None:
    mixer = build(kind, causal=True, normalised=normalised, **options)
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    state, outs, sizes = mixer.initial_state(2), [], []
    for t in range(11):
        y, state = mixer.step(x[:, t], state)
        outs.append(y)
        sizes.append({name: tuple(value.shape) for name, value in state.items()})
    assert torch.allclose(torch.stack(outs, 1), output(mixer, x), atol=1e-12)
    if kind is AFTFull:
        assert sizes[4]["keys"] == (2, 5, 8)
    else:
        assert sizes[0] == sizes[-1]
    if kind is not AFTSimple and options.get("window") != 0:
        with pytest.raises(ValueError, match="position biases for 11 tokens only"):
            mixer.step(x[:, 0], state)
    with pytest.raises(ValueError, match="causal=True"):
        build(kind, **options).step(x[:, 0], state)


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_the_implied_map_times_the_values_is_the_output(
    kind: Any, options: Any, causal: bool, normalised: bool
) -> None:
    mixer = build(kind, causal=causal, normalised=normalised, **options)
    x, mask = torch.randn(3, 11, 8, dtype=torch.float64), padding(11)
    weights = mixer.implied_map(x, mask)
    assert weights.shape == (3, 8, 11, 11)
    value = mixer._queries_keys_values(x)[2]
    y = mixer.proj(torch.einsum("bitj,bji->bti", weights, value))
    assert torch.allclose(y.masked_fill(~mask.any(1)[:, None, None], 0.0), output(mixer, x, mask), atol=1e-12)
    assert not weights.mT[~mask[:, None].expand(3, 8, 11)].any()
    assert not (weights.triu(1).any() if causal else False)
    assert torch.equal(mixer.implied_map(x, mask, [6, 1]), weights[:, [6, 1]])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "options"), [*KINDS, pytest.param(AFTFull, {"normalised": False}, id="sum")])
def test_extreme_inputs_stay_finite(kind: Any, options: Any, causal: bool, autocast: bool) -> None:
    mixer = build(kind, 9, torch.float32, causal=causal, **options)
    x = torch.randn(4, 9, 8)
    x[0] *= 400 / x[0].abs().max()
    x[1] = x[1, :1]
    real = torch.ones(4, 9, dtype=torch.bool)
    real[2, 1:] = False
    real[3] = False
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = output(mixer, x, real)
    gradients = torch.autograd.grad(y.float().sum(), [x, *mixer.parameters()])
    assert all(t.isfinite().all() for t in (y, *gradients))
    assert not y[3].any()


@pytest.mark.parametrize(("kind", "options"), [KINDS[2], KINDS[3]])
def test_the_entropy_loss_is_that_of_the_weights_of_positions(kind: Any, options: Any) -> None:
    for causal in (False, True):
        mixer = build(kind, causal=causal, entropy_loss=True, **options)
        _, losses = split_losses(mixer(torch.randn(3, 9, 8, dtype=torch.float64)))
        bias = mixer.position_bias(9)[0]
        if kind is AFTLocal:
            t = torch.arange(9)
            bias = bias.masked_fill((t - t[:, None]).abs() >= 3, -math.inf)
        wanted = torch.stack([torch.distributions.Categorical(logits=row[row > -math.inf]).entropy() for row in bias])
        assert losses["bias_entropy"].shape == (3,)
        assert torch.allclose(losses["bias_entropy"], wanted.mean().expand(3))
        (gradient,) = torch.autograd.grad(losses["bias_entropy"].sum(), next(mixer.bias.parameters()))
        assert gradient.isfinite().all()
        assert gradient.any()


@pytest.mark.parametrize(
    ("kind", "options", "biases"),
    [
        (AFTSimple, {}, 0),
        (AFTFull, {}, 3072**2),
        (AFTFull, {"bias_rank": 64}, 2 * 3072 * 64),
        (AFTLocal, {"window": 256, "bias_rank": 64}, 2 * 3072 * 64),
        (AFTLocal, {"window": 256}, 3072 * 256),
        (AFTLocal, {"window": 0}, 0),
    ],
)
def test_parameters_are_counted_as_in_the_paper(kind: Any, options: Any, biases: int) -> None:
    """Three linear layers D to D, and the biases: 9.4 M of them a layer free, 0.4 M factorised at T = 3,072.

    The paper counts 9.4 M for a free window too, which is `AFTFull`'s; ours has those of the window alone.
    """
    with torch.device("meta"):
        mixer = kind(MixerSpec(256, 1, 3072, causal=True), output_projection=False, **options)
        deit = kind(MixerSpec(192, 3, 3072, causal=True), **options)
    assert sum(p.numel() for p in mixer.parameters()) == 3 * 256 * 257 + biases
    assert sum(p.numel() for p in deit.parameters()) == 4 * 192 * 193 + biases


@pytest.mark.parametrize(("width", "millions", "printed"), [(192, 6.323, 6.3), (384, 22.656, 22.6)])
def test_parameters_of_the_papers_models(width: int, millions: float, printed: float) -> None:
    """DeiT's ViT with class token and position embedding, d' = 128 (Table 7)."""
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.models.vision_transformer.VisionTransformer(
            224, 16, embed_dim=width, depth=12, num_heads=width // 64
        )
        for block in model.blocks:
            block.attn = AFTFull(MixerSpec(width, width // 64, 197, (14, 14), prefix_tokens=1), bias_rank=128)
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert abs(count - millions) < 0.0006
    assert abs(count - printed) < 0.1


def test_biases_start_as_stated() -> None:
    torch.manual_seed(0)
    spec = MixerSpec(8, 2, 200)
    free, factorised = AFTFull(spec), AFTFull(spec, bias_rank=64)
    assert free.position_bias(200).std().item() == pytest.approx(0.1, rel=0.05)
    assert factorised.position_bias(200).std().item() == pytest.approx(0.08, rel=0.05)
    assert AFTFull(spec, bias_std=0.01).position_bias(200).std().item() == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (AFTLocal, {"window": -1}, "window=-1 must not be negative"),
        (AFTLocal, {"window": 0, "outside": "minus_infinity"}, "leaves no token to see"),
        (AFTLocal, {"window": 0, "entropy_loss": True}, "has no biases"),
        (AFTLocal, {"window": 1, "entropy_loss": True}, "whose entropy_loss is always 0"),
        (AFTLocal, {"window": 1, "outside": "minus_infinity"}, "leaves a token only itself"),
        (AFTFull, {"bias_rank": 0}, "bias_rank=0 must be at least 1"),
        (AFTFull, {"bias_std": -1.0}, "bias_std=-1.0 must not be negative"),
        (AFTFull, {"bias_rank": 4, "bias_std": 0.0}, "never get a gradient"),
        (AFTSimple, {"query_activation": "cosine"}, "query_activation"),
    ],
)
def test_what_cannot_be_built_is_refused(kind: Any, options: Any, reason: str) -> None:
    with pytest.raises(ReattendError, match=reason):
        kind(MixerSpec(8, 2, 9), **options)


def test_what_it_cannot_take_is_refused() -> None:
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    assert output(build(AFTSimple), x).shape == x.shape
    for kind in (AFTFull, AFTLocal):
        with pytest.raises(ValueError, match="12 tokens, but there are position biases for 11 only"):
            build(kind)(x)
    with pytest.raises(ValueError, match="takes no context"):
        build(AFTSimple)(x, None, x)
    with pytest.raises(ValueError, match="must be bool"):
        build(AFTSimple)(x, torch.ones(2, 12))


def test_nothing_is_kept_for_each_sample_and_pair() -> None:
    """What autograd keeps is of the order T^2 + B T D, not B T^2."""
    mixer = build(AFTFull, 64, torch.float32)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        output(mixer, torch.randn(16, 64, 8))
    assert max(kept) <= max(64 * 64, 16 * 64 * 24)


@pytest.mark.slow
def test_causal_simple_is_rwkv_without_decay_and_bonus() -> None:
    modeling = pytest.importorskip("transformers.models.rwkv.modeling_rwkv")
    mixer = build(AFTSimple, 11, causal=True)
    _, key, value = mixer._queries_keys_values(3 * torch.randn(2, 11, 8, dtype=torch.float64))
    decay, bonus = torch.full((8,), -math.inf, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    wanted, _ = modeling.rwkv_linear_attention_cpu(decay, bonus, key, value)
    assert torch.allclose(mixer.average(key, value)[0], wanted.double(), atol=1e-6)


@pytest.mark.parametrize("kind", [AFTSimple, AFTFull, AFTLocal])
def test_three_products_are_one_product_in_parts_and_hooks_are_never_missed(
    kind: type[AFTMixer], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    mixer = kind(MixerSpec(8, 2, 11)).double()
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    apart = split_losses(mixer(x))[0]
    seen = []
    handle = mixer.qkv.register_forward_hook(lambda *call: seen.append(call))
    torch.testing.assert_close(split_losses(mixer(x))[0], apart)
    assert len(seen) == 1
    handle.remove()
    monkeypatch.setattr("reattend.attention.aft.mixer.NARROW", 0)
    torch.testing.assert_close(split_losses(mixer(x))[0], apart)
