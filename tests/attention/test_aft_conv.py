"""AFT-conv: the twin on sequences and grids, exactly what it must equal, extremes, decoding, parameter counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reattend.attention import MixerSpec
from reattend.attention.aft.conv import AFTConv
from reattend.attention.naive.aft import conv as naive
from reattend.attention.ops import relative_average as forms
from reattend.attention.ops.grouped_average import grouped_average
from reattend.errors import ReattendError

SEQUENCE = MixerSpec(8, 2, 23)
CAUSAL = MixerSpec(8, 2, 23, causal=True)
IMAGE = MixerSpec(8, 2, 31, grid=(5, 6), prefix_tokens=1)
VIDEO = MixerSpec(8, 2, 30, grid=(2, 3, 5))
SPECS = {"sequence": SEQUENCE, "causal": CAUSAL, "image": IMAGE, "video": VIDEO}


@pytest.fixture(autouse=True, params=["table", "convolution"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a grid is averaged over."""
    monkeypatch.setattr(forms, "is_convolved", lambda *_: request.param == "convolution")
    return str(request.param)


def build(spec: MixerSpec, dtype: torch.dtype = torch.float64, **options: Any) -> AFTConv:
    torch.manual_seed(0)
    mixer = AFTConv(spec, **{"kernel_size": 3, **options}).to(dtype).eval()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return mixer


def tokens(spec: MixerSpec, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(3, spec.max_length, spec.dim, dtype=dtype, generator=torch.Generator().manual_seed(1))


def padding(spec: MixerSpec) -> Tensor:
    """Padding anywhere, one real token, and none."""
    mask = torch.rand(3, spec.max_length, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[1:] = False
    mask[1, spec.max_length // 2] = True
    return mask


def errors(mixer: AFTConv, largest_error: Any, x: Tensor, mask: Tensor | None) -> tuple[float, float]:
    leaves = [x.requires_grad_(), *mixer.parameters()]
    y, twin = mixer(x, mask), naive.forward(mixer, x, mask)
    assert isinstance(y, Tensor)
    cotangent = torch.randn_like(twin)
    got = torch.autograd.grad((y * cotangent).sum(), leaves, allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad((twin * cotangent).sum(), leaves, allow_unused=True, materialize_grads=True)
    floor = 0.01 * max(w.abs().max().item() for w in wanted)
    return largest_error(y, twin), max(largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True))


@pytest.mark.parametrize(
    ("place", "padded", "options"),
    [
        ("sequence", True, {"kernel_size": 5}),
        ("sequence", False, {"kernel_size": 1, "num_filters": 8, "reparameterised": False}),
        ("causal", True, {"kernel_size": 4}),
        ("causal", False, {"kernel_size": 19, "outside": "minus_infinity"}),
        ("image", True, {}),
        ("image", False, {"outside": "minus_infinity", "num_filters": 1}),
        ("image", True, {"signed": True, "reparameterised": False}),
        ("image", False, {"positions": "one_hot"}),
        ("video", True, {"num_filters": 4}),
        ("sequence", True, {"signed": True, "outside": "minus_infinity"}),
        ("causal", True, {"signed": True, "reparameterised": False}),
        ("sequence", False, {"normalised": False, "query_activation": "none", "output_projection": False}),
    ],
)
def test_outputs_and_gradients_are_the_twins(
    largest_error: Any, place: str, padded: bool, options: dict[str, Any]
) -> None:
    spec = SPECS[place]
    mixer = build(spec, **options)
    forward, backward = errors(mixer, largest_error, tokens(spec), padding(spec) if padded else None)
    assert forward < 1e-11
    assert backward < 1e-10


@pytest.mark.parametrize("place", SPECS)
def test_float32_is_near_the_twin(largest_error: Any, place: str) -> None:
    spec = SPECS[place]
    forward, backward = errors(build(spec, torch.float32), largest_error, tokens(spec, torch.float32), padding(spec))
    assert forward < 5e-6
    assert backward < 2e-5


@pytest.mark.parametrize("place", SPECS)
def test_gradcheck(place: str) -> None:
    mixer, x = build(SPECS[place]), tokens(SPECS[place])[:1, : 23 if place in ("sequence", "causal") else None]
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *mixer.parameters()), fast_mode=True)


@pytest.mark.parametrize("place", SPECS)
@pytest.mark.parametrize("options", [{}, {"signed": True, "reparameterised": False}, {"outside": "minus_infinity"}])
def test_it_is_the_average_with_the_full_relative_table(place: str, options: dict[str, Any]) -> None:
    """AFT-conv is AFT-full whose bias is the relative table, and the implied map of Eqn 3 gives its outputs."""
    mixer, x = build(SPECS[place], **options, num_filters=4), tokens(SPECS[place])
    mixer.proj = nn.Identity()
    implied = mixer.implied_map(x, padding(SPECS[place]))
    value = mixer.qkv(x).split(mixer.qkv_dims, -1)[2]
    y = torch.einsum("bcts,bsc->btc", implied, value)
    assert torch.allclose(mixer(x, padding(SPECS[place])), y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", SPECS)
def test_it_starts_as_the_softmax_of_keys_over_time(place: str) -> None:
    mixer, x = AFTConv(SPECS[place], kernel_size=3).double(), tokens(SPECS[place])
    query, key, value = mixer.qkv(x).split(mixer.qkv_dims, -1)
    logits = key.mT[:, :, None].expand(-1, -1, x.shape[1], -1)
    if SPECS[place].causal:
        logits = logits.masked_fill(torch.ones(logits.shape[2:], dtype=torch.bool).triu(1), -math.inf)
    average = torch.einsum("bhts,bshr->bthr", logits.softmax(-1), value.unflatten(2, (2, -1))).flatten(2)
    assert torch.allclose(mixer(x), mixer.proj(query.sigmoid() * average), rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", ["sequence", "causal", "image"])
def test_a_dominant_key_with_a_very_negative_bias_leaves_the_others(place: str) -> None:
    """K = 20 at one place and 0 elsewhere, w = -30 there: Eqn 6's difference would give 0 in float32."""
    spec = SPECS[place]
    mixer = build(spec, torch.float32, reparameterised=False)
    with torch.no_grad():
        mixer.weight.fill_(-30.0)
    key = torch.zeros(1, spec.max_length, 2)
    key[0, 12] = 20.0
    value = torch.arange(spec.max_length, dtype=torch.float32)[None, :, None].expand(1, -1, 8)
    found = mixer.average(key, value)
    wanted = mixer.double().average(key.double(), value.double())
    bias = mixer.position_bias(spec.max_length) + key[0].double().T[:, None]
    assert torch.allclose(wanted[1][0], bias.logsumexp(-1).T, rtol=0, atol=1e-12)
    for x, y in zip(found, wanted, strict=True):
        assert torch.allclose(x.double(), y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", SPECS)
@pytest.mark.parametrize("scale", [120.0, 2000.0])
def test_keys_far_apart_are_exact(largest_error: Any, place: str, scale: float) -> None:
    spec = SPECS[place]
    mixer = build(spec, torch.float32, reparameterised=False)
    with torch.no_grad():
        mixer.weight.mul_(scale)
    key = scale * torch.rand(2, spec.max_length, 2, generator=torch.Generator().manual_seed(0))
    value = torch.randn(2, spec.max_length, 8, generator=torch.Generator().manual_seed(1))
    leaves = [t.requires_grad_() for t in (key, value)] + [mixer.weight]
    average, log_sum = mixer.average(key, value)
    logits = key.double().mT[:, :, None] + mixer.position_bias(spec.max_length).double()
    wanted = torch.einsum("bhts,bshr->bthr", logits.softmax(-1), value.double().unflatten(2, (2, -1))).flatten(2)
    assert largest_error(average, wanted) < 1e-3
    assert largest_error(log_sum, logits.logsumexp(-1).mT) < 1e-5
    cotangent = torch.randn_like(average)
    got = torch.autograd.grad((average * cotangent).sum(), leaves)
    for g, w in zip(got, torch.autograd.grad((wanted * cotangent).sum(), leaves), strict=True):
        assert largest_error(g, w, 1e-3) < 1e-3


@pytest.mark.parametrize("length", [16, 17, 50])
@pytest.mark.parametrize("far", [1.0, 300.0])
def test_the_future_does_not_move_a_bit(length: int, far: float, form: str) -> None:
    if form == "convolution":
        pytest.skip("not causal")
    mixer, x = build(CAUSAL, torch.float32, kernel_size=4), torch.randn(2, length, 8)
    y = mixer(x)
    for t in range(1, length):
        other = torch.cat([x[:, :t], far * torch.randn(2, length - t, 8)], 1)
        assert torch.equal(mixer(other)[:, :t], y[:, :t])


@pytest.mark.parametrize("options", [{}, {"signed": True}, {"outside": "minus_infinity"}, {"kernel_size": 2}])
def test_steps_are_the_parallel_form(options: dict[str, Any]) -> None:
    mixer, x = build(CAUSAL, **options), tokens(CAUSAL)
    state, outputs = mixer.initial_state(len(x)), []
    sizes = {name: t.shape for name, t in state.items()}
    for x_t in x.unbind(1):
        y_t, state = mixer.step(x_t, state)
        outputs.append(y_t)
    assert {name: t.shape for name, t in state.items()} == sizes
    assert torch.allclose(torch.stack(outputs, 1), mixer(x), rtol=0, atol=1e-12)


def test_other_sizes_are_the_grid_at_another_scale() -> None:
    mixer = build(MixerSpec(8, 2, 6, grid=(2, 3)))
    larger = build(MixerSpec(8, 2, 24, grid=(4, 6)))
    larger.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 24, 8, dtype=torch.float64)
    assert torch.equal(mixer(x), larger(x))
    with pytest.raises(ValueError, match="2 x 3"):
        mixer(x[:, :23])
    volume = build(MixerSpec(8, 2, 6, grid=(1, 2, 3)))
    assert volume(torch.randn(1, 48, 8, dtype=torch.float64)).shape == (1, 48, 8)


@pytest.mark.parametrize("grid", [None, (5, 6)])
def test_prefix_tokens_alone_are_averaged_and_fewer_are_refused(grid: Any, form: str) -> None:
    if form == "convolution":
        pytest.skip("no place to convolve at")
    mixer = build(MixerSpec(8, 2, 32, grid=grid, prefix_tokens=2))
    x = torch.randn(3, 2, 8, dtype=torch.float64)
    query, key, value = mixer.qkv(x).split(mixer.qkv_dims, -1)
    average = torch.einsum("bsh,bshr->bhr", key.softmax(1), value.unflatten(2, (2, -1))).flatten(1)
    assert torch.allclose(mixer(x), mixer.proj(query.sigmoid() * average[:, None]), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="1 tokens are fewer than the 2 prefix tokens"):
        mixer(x[:, :1])


def test_reparameterised_filters() -> None:
    mixer = AFTConv(IMAGE, kernel_size=3).double()
    assert mixer.weight.std() > 0
    assert not mixer.filters().any()
    x = tokens(IMAGE)
    mixer(x).square().sum().backward()
    assert mixer.gamma is not None
    assert mixer.gamma.grad is not None
    assert mixer.gamma.grad.all(), "gamma learns from the start"
    with torch.no_grad():
        mixer.gamma.copy_(torch.tensor([2.0, 3.0]))
        mixer.beta.copy_(torch.tensor([0.5, -1.0]))  # type: ignore[union-attr]
        mixer.weight[1] = 0.1
    filters = mixer.filters().flatten(1)
    assert torch.allclose(filters[0].mean(), torch.tensor(0.5, dtype=torch.float64))
    assert torch.allclose(filters[0].std(correction=0), torch.tensor(2.0, dtype=torch.float64))
    assert torch.equal(filters[1], torch.full((9,), -1.0, dtype=torch.float64)), "a constant filter has no shape"
    filters.sum().backward()
    assert mixer.weight.grad.isfinite().all()  # type: ignore[union-attr]
    assert mixer.no_weight_decay() == {"gamma", "beta"}


def test_one_hot_filters_have_one_tap() -> None:
    mixer = build(IMAGE, positions="one_hot")
    assert mixer.beta is None
    mixer.train()
    chosen = [mixer.filters() for _ in range(20)]
    assert all(((f != 0).flatten(1).sum(1) == 1).all() for f in chosen)
    assert any(not torch.equal(chosen[0] != 0, f != 0) for f in chosen)
    mixer.average(torch.randn(1, 31, 2).double(), torch.randn(1, 31, 8).double())[0].square().sum().backward()
    assert mixer.weight.grad is not None
    assert mixer.weight.grad.any()
    mixer.eval()
    assert torch.equal((mixer.filters() != 0).flatten(1).int().argmax(1), mixer.weight.flatten(1).argmax(1))


def test_entropy_loss() -> None:
    mixer = build(SEQUENCE, entropy_loss=True)
    _, losses = mixer(tokens(SEQUENCE))
    shares = mixer.filters().softmax(1)
    assert torch.allclose(losses["bias_entropy"], -(shares * shares.log()).sum().expand(3), rtol=0, atol=1e-12)


def test_what_cannot_be_built_is_told() -> None:
    for options, words in (
        ({"kernel_size": 4}, "kernel_size=4 must be odd"),
        ({"num_filters": 3}, "num_filters=3 must divide dim=8"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"positions": "two"}, "positions"),
        ({"positions": "one_hot", "reparameterised": False}, "a tap of height gamma"),
        ({"temperature": 0.5}, "temperature=0.5 is that of positions=one_hot alone"),
        ({"kernel_size": 1}, "weight never gets a gradient"),
        ({"kernel_size": 1, "positions": "one_hot"}, "weight never gets a gradient"),
        ({"kernel_size": 1, "reparameterised": False, "entropy_loss": True}, "always 0"),
        ({"kernel_size": 1, "reparameterised": False, "outside": "minus_infinity"}, "leaves a token only itself"),
    ):
        with pytest.raises(ReattendError, match=words):
            AFTConv(SEQUENCE, **options)  # type: ignore[arg-type]
    for spec, words in (
        (MixerSpec(8, 2, 9, grid=(3, 3), causal=True), "no causal form"),
        (MixerSpec(8, 2, 9, prefix_tokens=1, causal=True), "prefix"),
        (MixerSpec(8, 2, 16, grid=(2, 2, 2, 2)), "4 extents"),
    ):
        assert any(words in problem for problem in AFTConv.problems(spec))


def test_groups_do_not_move_each_other() -> None:
    table, index = 3 * torch.randn(2, 9), torch.randint(9, (5, 7))
    key, value = torch.randn(2, 7, 4), torch.randn(2, 7, 3, 4)
    before = grouped_average(table, index, key, value)
    key[0, 0, 1], key[1, 2, 3] = 200.0, 2000.0
    kept = torch.ones(2, 4, dtype=torch.bool)
    kept[0, 1] = kept[1, 3] = False
    for x, y in zip(before, grouped_average(table, index, key, value), strict=True):
        assert torch.equal(x.movedim(-1, 1)[kept], y.movedim(-1, 1)[kept])


@pytest.mark.parametrize(
    ("width", "heads", "kernel", "patch", "size", "millions", "printed", "margin"),
    [
        (192, 32, 11, 16, 224, 5.356, 5.4, 0.1),
        (192, 192, 11, 16, 224, 5.963, 5.9, 0.1),
        (384, 16, 11, 16, 224, 20.298, 20.3, 0.1),
        (384, 384, 11, 16, 224, 22.541, 22.5, 0.1),
        (384, 384, 15, 16, 224, 23.021, 23.0, 0.1),
        (768, 32, 25, 16, 384, 79.865, 79.7, 0.2),
    ],
)
def test_parameters_of_the_papers_models(
    width: int,
    heads: int,
    kernel: int,
    patch: int,
    size: int,
    millions: float,
    printed: float,
    margin: float,
    form: str,
) -> None:
    """DeiT's ViT without class token and position embedding (Tables 7 and 8)."""
    if form == "convolution":
        pytest.skip("counted once")
    timm = pytest.importorskip("timm")
    grid = (size // patch, size // patch)
    with torch.device("meta"):
        model = timm.models.vision_transformer.VisionTransformer(
            size, patch, embed_dim=width, depth=12, num_heads=width // 64, class_token=False, pos_embed="none",
            global_pool="avg", fc_norm=False,
        )  # fmt: skip
        for block in model.blocks:
            spec = MixerSpec(width, width // 64, math.prod(grid), grid)
            block.attn = AFTConv(spec, kernel_size=kernel, num_filters=heads)
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert abs(count - millions) < 0.0006
    assert abs(count - printed) < margin
