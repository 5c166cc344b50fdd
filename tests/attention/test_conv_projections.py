"""Convolved queries and keys, and convolutional projections."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.naive import multihead as naive
from reattend.attention.ops.convolution import identity_kernels, scaled_grid
from reattend.errors import ReattendError

BN = {"recenter": {"beta": 0.6, "learnable": True}}
SH = {"scaled_heads": {"scales": [1, 2]}}
PLACES = {
    "conv1d": {"grid": None},
    "conv2d": {"grid": (3, 4)},
    "cvt": {"grid": (3, 4)},
    "cvt on a sequence": {"grid": None},
    "cvt on a grid of one extent": {"grid": (12,)},
}


def projection(place: str, **options: Any) -> dict[str, Any]:
    return {"projection": {"name": place.split()[0], **options}}


def mask(*real: float, length: int) -> torch.Tensor:
    """Padding anywhere, with this share of real tokens in each sample."""
    return torch.rand(len(real), length) < torch.tensor(real)[:, None]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("slots", [{}, BN, SH, BN | SH, {"kernel": "linear"}], ids=["", "bn", "sh", "bn_sh", "linear"])
@pytest.mark.parametrize(("prefix", "padded"), [(0, False), (1, True)])
def test_outputs_and_gradients_are_the_twins(
    build: Any, errors_to_twin: Any, place: str, slots: dict[str, Any], prefix: int, padded: bool
) -> None:
    length = 12 + prefix
    mixer = build(projection(place) | slots, length=length, prefix_tokens=prefix, **PLACES[place])
    x = torch.randn(3, length, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, mask(1.0, 0.5, 0.0, length=length) if padded else None)
    assert forward < 1e-10
    assert backward < 1e-9


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_kernels_of_any_size(build: Any, errors_to_twin: Any, place: str, size: int) -> None:
    mixer = build(projection(place, kernel_size=size), length=12, **PLACES[place])
    forward, backward = errors_to_twin(mixer, torch.randn(2, 12, 8, dtype=torch.float64))
    assert forward < 1e-10
    assert backward < 1e-9


@pytest.mark.parametrize("place", PLACES)
def test_float32_is_near_the_twin(build: Any, errors_to_twin: Any, place: str) -> None:
    mixer = build(projection(place) | BN | SH, length=12, dtype=torch.float32, **PLACES[place])
    forward, backward = errors_to_twin(mixer, torch.randn(2, 12, 8), mask(1.0, 0.7, length=12))
    assert forward < 5e-6
    assert backward < 2e-5


@pytest.mark.parametrize("place", ["conv1d", "cvt on a sequence"])
@pytest.mark.parametrize("length", [1, 2, 7, 13])
def test_sequences_of_any_length(build: Any, errors_to_twin: Any, place: str, length: int) -> None:
    mixer = build(projection(place), length=9)
    assert errors_to_twin(mixer, torch.randn(2, length, 8, dtype=torch.float64))[0] < 1e-10


@pytest.mark.parametrize("place", ["conv2d", "cvt"])
def test_a_grid_of_the_same_aspect_ratio(build: Any, errors_to_twin: Any, place: str) -> None:
    mixer = build(projection(place), length=6, grid=(2, 3))
    assert errors_to_twin(mixer, torch.randn(2, 24, 8, dtype=torch.float64))[0] < 1e-10
    with pytest.raises(ValueError, match="12 tokens are no 2 x 3 grid"):
        mixer(torch.randn(2, 12, 8, dtype=torch.float64))


def test_scaled_grids() -> None:
    assert scaled_grid((4, 6), 24) == (4, 6)
    assert scaled_grid((4, 6), 6) == (2, 3)
    assert scaled_grid((14, 14), 24**2) == (24, 24)
    with pytest.raises(ValueError, match="at any scale"):
        scaled_grid((4, 6), 36)


@pytest.mark.parametrize("padded", [False, True])
def test_conv1d_convolves_a_context_too(build: Any, errors_to_twin: Any, padded: bool) -> None:
    mixer = build(projection("conv1d") | BN)
    masks = (mask(1.0, 0.5, length=7), mask(0.6, 0.5, length=11)) if padded else (None, None)
    x, context = torch.randn(2, 7, 8, dtype=torch.float64), torch.randn(2, 11, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, masks[0], context, masks[1])
    assert forward < 1e-10
    assert backward < 1e-9


def test_what_takes_no_context(build: Any) -> None:
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    for place in ("conv2d", "cvt"):
        with pytest.raises(ValueError, match="no context"):
            build(projection(place), length=12, grid=(3, 4))(x, context=x.clone())
    with pytest.raises(ValueError, match="no context beside prefix tokens"):
        build(projection("conv1d"), length=12, prefix_tokens=1)(x, context=x.clone())


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "cvt"])
@pytest.mark.parametrize("slots", [{}, BN, SH, BN | SH], ids=["", "bn", "sh", "bn_sh"])
def test_a_kernel_that_is_the_identity_changes_nothing(build: Any, name: str, slots: dict[str, Any]) -> None:
    place = {"length": 13, "grid": (3, 4), "prefix_tokens": 1}
    plain, convolved = build(slots, **place), build(projection(name) | slots, **place)
    convolved.load_state_dict(plain.state_dict(), strict=False)
    weight = convolved.projection.weight
    dimensions = 1 if name == "conv1d" else 2
    with torch.no_grad():
        weight.zero_()[(..., *((extent - 1) // 2 for extent in weight.shape[-dimensions:]))] = 1.0
    x, real = torch.randn(2, 13, 8, dtype=torch.float64), mask(1.0, 0.5, length=13)
    assert all(map(torch.equal, convolved.projection.tokens(x, x), (x, x, x)))
    q, k = torch.randn(2, 2, 2, 13, 4, dtype=torch.float64)
    assert all(map(torch.equal, convolved.projection(q, k), (q, k)))
    assert torch.allclose(convolved(x, real)[real], plain(x, real)[real], rtol=0, atol=1e-13)


def test_the_kernel_of_conv1d_moves_keys(build: Any) -> None:
    mixer = build(projection("conv1d"), prefix_tokens=1)
    q, k = torch.randn(2, 1, 2, 9, 4, dtype=torch.float64)
    with torch.no_grad():
        mixer.projection.weight.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0]))
    moved = mixer.projection(q, k)
    for before, after in zip((q, k), moved, strict=True):
        assert torch.equal(after[:, :, 0], before[:, :, 0])
        assert torch.allclose(after[:, :, 1:-1], before[:, :, 2:])
        assert not after[:, :, -1].any()


def test_an_even_kernel_pads_right_and_below(build: Any) -> None:
    mixer = build(projection("conv2d"), length=13, grid=(3, 4), prefix_tokens=1)
    q = torch.randn(1, 2, 13, 4, dtype=torch.float64)
    with torch.no_grad():
        mixer.projection.weight.copy_(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    moved, _ = mixer.projection(q, q)
    before, after = (t[:, :, 1:].unflatten(2, (3, 4)) for t in (q, moved))
    assert torch.allclose(after[:, :, :2, :3], before[:, :, 1:, 1:])
    assert not after[:, :, 2].any()
    assert not after[:, :, :, 3].any()


@pytest.mark.parametrize("place", PLACES)
def test_real_tokens_are_blind_to_padding(build: Any, place: str) -> None:
    mixer = build(projection(place) | BN | SH, length=12, **PLACES[place])
    real = mask(0.6, 0.6, length=12)
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    other = torch.where(real[..., None], x, 100 * torch.randn_like(x))
    assert torch.allclose(mixer(x, real)[real], mixer(other, real)[real], atol=1e-10)


@pytest.mark.parametrize("place", ["conv1d", "cvt on a sequence"])
def test_padding_at_the_end_is_as_no_padding(build: Any, place: str) -> None:
    mixer = build(projection(place) | BN)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    real = (torch.arange(9) < 6).expand(2, 9)
    assert torch.allclose(mixer(x, real)[:, :6], mixer(x[:, :6]), atol=1e-12)


@pytest.mark.parametrize("place", ["conv1d", "conv2d"])
def test_attention_map_gives_the_output(build: Any, place: str) -> None:
    mixer = build(projection(place) | SH, length=12, **PLACES[place])
    x, real = torch.randn(2, 12, 8, dtype=torch.float64), mask(1.0, 0.7, length=12)
    value = mixer.qkv(x)[..., 16:].unflatten(2, (2, 4)).transpose(1, 2)
    output = mixer.proj((mixer.attention_map(x, real) @ value).transpose(1, 2).flatten(2))
    assert torch.allclose(output, mixer(x, real), atol=1e-12)


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "cvt"])
def test_not_causal(name: str) -> None:
    with pytest.raises(ReattendError, match=r"not causal: a convolved (key|token) holds tokens of the future"):
        MultiHeadAttention(MixerSpec(8, 2, 12, grid=(3, 4), causal=True), **projection(name))


@pytest.mark.parametrize(
    ("name", "options", "grid", "problem"),
    [
        ("conv1d", {"kernel_size": 0}, None, "kernel_size=0 must be 1 or larger"),
        ("conv2d", {"kernel_size": -1}, (3, 4), "kernel_size=-1 must be 1 or larger"),
        ("cvt", {"kernel_size": 0}, (3, 4), "kernel_size=0 must be 1 or larger"),
        ("conv2d", {}, None, "works on a grid"),
        ("conv2d", {}, (12,), "must have two extents"),
        ("cvt", {}, (2, 3, 2), "must have one or two extents"),
        ("conv1d", {"kernel": 5}, None, "has no option 'kernel'"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, Any], grid: Any, problem: str) -> None:
    with pytest.raises(ReattendError, match=problem):
        MultiHeadAttention(MixerSpec(8, 2, 12, grid=grid), **projection(name, **options))


def test_kernels_start_near_the_identity() -> None:
    torch.manual_seed(0)
    kernels = identity_kernels(3, 64, 2, 2, dimensions=2)
    assert (kernels[..., 0, 0] - 1).abs().max() < 0.1
    kernels[..., 0, 0] -= 1
    assert 0.018 < kernels.std() < 0.022


@pytest.mark.parametrize("place", PLACES)
def test_autocast_is_near_the_twin(build: Any, place: str, largest_error: Any) -> None:
    mixer = build(projection(place) | BN, length=12, dtype=torch.float32, **PLACES[place])
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(parameter.bfloat16())
    x = torch.randn(2, 12, 8).bfloat16().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)
    y.float().square().sum().backward()
    assert largest_error(y, naive.forward(mixer, x)) < 3e-2
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@pytest.mark.parametrize("place", PLACES)
def test_extremes_are_finite(build: Any, place: str) -> None:
    mixer = build(projection(place) | BN, length=12, dtype=torch.float32, **PLACES[place])
    real = torch.zeros(3, 12, dtype=torch.bool)
    real[0], real[1, 3] = True, True
    for x in (torch.full((3, 12, 8), 120.0), 120 * torch.randn(3, 12, 8).sign()):
        for autocast in (False, True):
            x.requires_grad_().grad = None
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = mixer(x, real)
            y.float().sum().backward()
            assert y.isfinite().all()
            assert x.grad is not None
            assert x.grad.isfinite().all()
            assert not y[2].any()


@pytest.mark.parametrize("place", ["conv1d", "conv2d", "cvt"])
def test_compiles_without_graph_breaks(build: Any, place: str) -> None:
    mixer = build(projection(place) | SH, length=12, dtype=torch.float32, **PLACES[place])
    torch.compiler.reset()
    x, real = torch.randn(2, 12, 8), mask(1.0, 0.7, length=12)
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x, real), mixer(x, real), atol=1e-6)


@pytest.mark.parametrize("place", PLACES)
def test_gradcheck(build: Any, place: str) -> None:
    mixer = build(projection(place), dim=4, length=12, **PLACES[place])
    real = (torch.arange(12) != 4).unsqueeze(0)
    x = torch.randn(1, 12, 4, dtype=torch.float64, requires_grad=True)
    weight = mixer.projection.weight

    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mixer, {"projection.weight": weight}, (x, real))

    assert torch.autograd.gradcheck(run, (x, weight), fast_mode=True)
