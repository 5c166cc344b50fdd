"""SOFT against its twin, in special cases, and under extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerFactory, MixerSpec, naive
from reattend.attention.ops.gaussian import gaussian_kernel
from reattend.attention.soft import Soft, newton_inverse

DTYPE = torch.float64


def build(*, dim: int = 8, length: int = 11, dtype: torch.dtype = DTYPE, **options: Any) -> Soft:
    torch.manual_seed(0)
    mixer = Soft(MixerSpec(dim, 2, length), **options).to(dtype)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return mixer


def errors(mixer: Soft, x: Tensor, mask: Tensor | None, largest_error: Callable[..., float]) -> tuple[float, float]:
    leaves = [x.requires_grad_(), *mixer.parameters()]
    y, twin = mixer(x, mask), naive.forward(mixer, x, mask)
    cotangent = torch.randn_like(twin)
    got = torch.autograd.grad((y * cotangent).sum(), leaves)
    wanted = torch.autograd.grad((twin * cotangent).sum(), leaves)
    floor = 0.01 * max(w.abs().max().item() for w in wanted)
    return largest_error(y, twin), max(largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"num_landmarks": 4},
        {"num_landmarks": 1, "bias": False},
        {"num_landmarks": 20, "num_iterations": 3},
        {"num_landmarks": None},
    ],
)
def test_outputs_and_gradients_are_the_twins(
    options: dict[str, Any], padded: bool, largest_error: Callable[..., float]
) -> None:
    for length in (1, 11):
        mixer = build(length=length, **options)
        x = torch.randn(3, length, 8, dtype=DTYPE)
        mask = torch.rand(3, length) < torch.tensor([0.8, 0.3, 0.0])[:, None] if padded else None
        forward, backward = errors(mixer, x, mask, largest_error)
        assert forward < 1e-11
        assert backward < 1e-9


@pytest.mark.parametrize("num_landmarks", [5, None])
def test_float32_is_near_the_twin(num_landmarks: int | None, largest_error: Callable[..., float]) -> None:
    mixer = build(dtype=torch.float32, num_landmarks=num_landmarks)
    forward, backward = errors(mixer, torch.randn(3, 19, 8), torch.rand(3, 19) < 0.8, largest_error)
    assert forward < 1e-5
    assert backward < 5e-5


@pytest.mark.parametrize("num_landmarks", [3, None])
def test_gradcheck(num_landmarks: int | None) -> None:
    mixer = build(dim=4, length=5, num_landmarks=num_landmarks)
    real = torch.tensor([[True, True, False, True, True]])
    x = torch.randn(1, 5, 4, dtype=DTYPE, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, real))

    assert torch.autograd.gradcheck(run, (x, *mixer.parameters()))


def test_the_kernel_is_gaussian() -> None:
    x, y = (
        torch.randn(2, 3, 5, 4, dtype=DTYPE, requires_grad=True),
        torch.randn(2, 3, 7, 4, dtype=DTYPE, requires_grad=True),
    )
    assert torch.allclose(gaussian_kernel(x, y), (-torch.cdist(x, y).square() / 2).exp())
    assert torch.autograd.gradcheck(gaussian_kernel, (x, y))
    far = 1000 + torch.randn(9, 4)
    assert torch.allclose(
        gaussian_kernel(far, far).double(), (-(torch.cdist(far.double(), far.double()) ** 2) / 2).exp()
    )


def test_newton_converges_to_the_pseudo_inverse() -> None:
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(6, 6, dtype=DTYPE))[0]
    values = torch.tensor([3.0, 1.0, 0.5, 0.1, 0.0, 0.0], dtype=DTYPE)
    matrix = basis @ values.diag() @ basis.T
    assert torch.allclose(newton_inverse(matrix, 40), torch.linalg.pinv(matrix, hermitian=True, rtol=1e-9), atol=1e-5)
    ones = torch.ones(4, 4, dtype=DTYPE)
    assert torch.allclose(newton_inverse(ones, 20), ones / 16)
    for steps in (0, 1, 7):
        left = newton_inverse(torch.tensor([[0.25]], dtype=DTYPE), steps)
        assert torch.allclose(left, torch.tensor([[4.0]], dtype=DTYPE))
    two = torch.tensor([1.0, 0.2], dtype=DTYPE)
    for steps in (0, 1, 5):  # Of an eigenvalue e the part 1 - (1 - e^2 / |A|^2)^(2^k) is found after k steps.
        wanted = (1 - (1 - two**2) ** (2**steps)) / two
        assert torch.allclose(newton_inverse(two.diag(), steps).diagonal(), wanted)


def test_a_landmark_for_each_token_is_the_whole_kernel() -> None:
    x = 3 * torch.randn(2, 7, 8, dtype=DTYPE)
    low_rank, whole = build(num_landmarks=9, num_iterations=40), build(num_landmarks=None)
    mask = torch.rand(2, 7) < 0.8
    assert torch.allclose(low_rank(x, mask), whole(x, mask), atol=1e-7)
    # Landmarks that average several tokens are not, unless these are the same.
    few = build(num_landmarks=7, num_iterations=40)
    twice = x.repeat_interleave(2, 1)
    assert torch.allclose(few(twice), whole(twice), atol=1e-7)
    assert not torch.allclose(build(num_landmarks=3)(x), whole(x), atol=1e-2)


@pytest.mark.parametrize("num_landmarks", [4, 20, None])
def test_padding_changes_nothing(num_landmarks: int | None) -> None:
    mixer = build(num_landmarks=num_landmarks)
    x = torch.randn(2, 11, 8, dtype=DTYPE)
    spread = 100 * torch.randn(2, 17, 8, dtype=DTYPE)
    keep = torch.randperm(17)[:11].sort().values
    spread[:, keep] = x
    mask = torch.zeros(2, 17, dtype=torch.bool)
    mask[:, keep] = True
    assert torch.allclose(mixer(spread, mask)[:, keep], mixer(x), rtol=0, atol=1e-11)


@pytest.mark.parametrize("num_landmarks", [4, 20, None])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 120.0])
def test_extremes_are_finite(num_landmarks: int | None, autocast: bool, scale: float) -> None:
    mixer = build(dtype=torch.float32, num_landmarks=num_landmarks)
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


@pytest.mark.parametrize("num_landmarks", [4, 20, None])
def test_extremes_are_near_the_twin(num_landmarks: int | None, largest_error: Callable[..., float]) -> None:
    mixer = build(dtype=torch.float32, num_landmarks=num_landmarks)
    for x in (120 * torch.randn(2, 9, 8), torch.randn(2, 1, 8).expand(2, 9, 8), 100 + 0.1 * torch.randn(2, 9, 8)):
        # Rounding the queries themselves to float32 moves their distances.
        q = mixer.qk(x)
        with torch.no_grad():
            exact = Soft(mixer.spec, num_landmarks=num_landmarks).double()
            exact.load_state_dict(mixer.state_dict())
            exact.qk.weight.copy_(torch.eye(8)), exact.qk.bias.zero_()
            mixer_of_q = Soft(mixer.spec, num_landmarks=num_landmarks)
            mixer_of_q.load_state_dict(exact.state_dict())
            assert largest_error(mixer_of_q(q), naive.forward(exact, q)) < 1e-3


@pytest.mark.parametrize("num_landmarks", [4, None])
def test_compiles_without_graph_breaks(num_landmarks: int | None) -> None:
    mixer = build(dtype=torch.float32, num_landmarks=num_landmarks, num_iterations=2)
    x, mask = torch.randn(2, 11, 8, requires_grad=True), torch.rand(2, 11) < 0.8
    y, compiled = mixer(x, mask), torch.compile(mixer, backend="aot_eager", fullgraph=True)(x, mask)
    assert torch.allclose(y, compiled, atol=1e-5)
    wanted, got = (torch.autograd.grad(out.square().sum(), x)[0] for out in (y, compiled))
    assert torch.allclose(got, wanted, atol=1e-4)


def test_problems_are_told() -> None:
    spec = MixerSpec(8, 2, 11)
    for options, word in (
        ({"num_landmarks": 0}, "num_landmarks=0"),
        ({"num_iterations": -1}, "num_iterations=-1"),
        ({"landmarks": 3}, "landmarks"),
    ):
        (problem,) = MixerFactory(Soft, options).problems(spec)
        assert word in problem
    (problem,) = MixerFactory(Soft, {}).problems(MixerSpec(8, 2, 11, causal=True))
    assert "not causal" in problem
    with pytest.raises(ValueError, match="no context"):
        build()(torch.randn(1, 3, 8, dtype=DTYPE), context=torch.randn(1, 3, 8, dtype=DTYPE))
    with pytest.raises(ValueError, match="bool"):
        build()(torch.randn(1, 3, 8, dtype=DTYPE), torch.ones(1, 3))


def test_landmarks_claim_linear_time() -> None:
    assert Soft.capabilities().time_exponent == 1
    assert Soft.capabilities(num_landmarks=None).time_exponent == 2
    mixer = Soft(MixerSpec(64, 2, 4096))
    assert mixer.flops(4096) - mixer.flops(2048) == 2048 * (2 * 3 * 64**2 + 6 * 49 * 64)
    assert math.isclose(Soft(MixerSpec(64, 2, 9), num_landmarks=None).flops(9), 2 * 9 * 3 * 64**2 + 4 * 81 * 64)
