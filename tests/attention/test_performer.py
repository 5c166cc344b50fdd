"""The Performer's random features: what they estimate, how they are drawn and redrawn, and attention with them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.contract import StartsSteps
from reattend.attention.feature_maps.performer import Performer, orthogonal_normal

both_forms = pytest.mark.parametrize("causal", [False, True])
both_kinds = pytest.mark.parametrize("kind", ["softmax", "relu"])


def kernel(kind: str = "softmax", **options: Any) -> dict[str, Any]:
    return {"kernel": {"name": "linear", "feature_map": {"name": "performer", "kind": kind, **options}}}


def feature_map(head_dim: int = 4, **options: Any) -> Performer:
    return Performer(MixerSpec(head_dim, 1, 9), **options)


def test_products_of_features_estimate_the_exponential() -> None:
    torch.manual_seed(0)
    q, k = 0.7 * torch.randn(6, 8).double(), 0.7 * torch.randn(6, 8).double()
    phi = feature_map(8, num_features=16, redraw_interval=1).double()
    draws = []
    for step in range(4000):
        phi.start_step(step)
        draws.append((phi(q) * phi(k)).sum(1))
    estimates = torch.stack(draws)
    error = (estimates.mean(0) - ((q * k).sum(1) / math.sqrt(8)).exp()) / (estimates.std(0) / math.sqrt(4000))
    assert error.abs().max() < 4
    assert estimates.std(0).min() > 0.01


def test_the_relu_features_estimate_the_arc_cosine_kernel() -> None:
    # E relu(w.q) relu(w.k) = |q| |k| (sin a + (pi - a) cos a) / 2 pi with a the angle (Cho and Saul 2009).
    torch.manual_seed(1)
    q, k = torch.randn(5, 8).double(), torch.randn(5, 8).double()
    phi = feature_map(8, num_features=16, redraw_interval=1, kind="relu").double()
    draws = []
    for step in range(3000):
        phi.start_step(step)
        draws.append((phi(q) * phi(k)).sum(1))
    estimates = torch.stack(draws)
    cosine = nn.functional.cosine_similarity(q, k)
    angle = cosine.acos()
    wanted = q.norm(dim=1) * k.norm(dim=1) * (angle.sin() + (math.pi - angle) * cosine) / (2 * math.pi) / math.sqrt(8)
    error = (estimates.mean(0) - wanted) / (estimates.std(0) / math.sqrt(3000))
    assert error.abs().max() < 4


def test_rows_are_orthogonal_in_blocks_and_long_as_normal_vectors() -> None:
    matrix = orthogonal_normal(11, 4, seed=3)
    assert matrix.shape == (11, 4)
    for block in matrix.split(4):
        gram = block @ block.T
        assert torch.allclose(gram, gram.diagonal().diag(), atol=1e-12)
    many = torch.cat([orthogonal_normal(8, 4, seed=seed) for seed in range(1500)])
    # Each row by itself is a normal vector: moments of its entries, and of its length.
    assert many.mean(0).abs().max() < 0.05
    assert torch.allclose(many.T @ many / len(many), torch.eye(4).double(), atol=0.06)
    assert abs((many**4).mean().item() - 3) < 0.2
    assert abs(many.norm(dim=1).var().item() - (4 - 8 * (math.gamma(2.5) / math.gamma(2)) ** 2 / 4)) < 0.05


def test_orthogonal_rows_estimate_better_than_independent_ones() -> None:
    torch.manual_seed(0)
    q, k = 0.4 * torch.randn(8, 8).double(), 0.4 * torch.randn(8, 8).double()
    phi = feature_map(8, num_features=8).double()
    wanted = ((q * k).sum(1) / math.sqrt(8)).exp()
    errors: dict[bool, float] = {}
    for orthogonal in (True, False):
        total = torch.zeros(8).double()
        for seed in range(1500):
            phi.matrix.copy_(orthogonal_normal(8, 8, seed=seed) if orthogonal else torch.randn(8, 8).double())
            total += ((phi(q) * phi(k)).sum(1) / wanted - 1) ** 2
        errors[orthogonal] = total.mean().item()
    assert errors[True] < errors[False]


def test_many_features_are_near_softmax_attention(build: Any, largest_error: Any) -> None:
    mixer = build(kernel(num_features=20000), length=12)
    softmax = MultiHeadAttention(mixer.spec).double()
    softmax.load_state_dict(mixer.state_dict(), strict=False)
    x = 0.3 * torch.randn(2, 12, 8).double()
    assert largest_error(mixer(x), softmax(x)) < 0.02


def test_the_number_of_features() -> None:
    assert feature_map(32).num_features(32) == 110  # floor(32 ln 32)
    assert feature_map(1).num_features(1) == 1
    assert feature_map(4, num_features=256).num_features(4) == 256


@pytest.mark.parametrize("name", ["num_features", "redraw_interval"])
def test_options_below_one_are_refused(name: str) -> None:
    problems = MultiHeadAttention.problems(MixerSpec(8, 2, 9), **kernel(**{name: 0}))
    assert any(f"{name}=0" in problem for problem in problems)


@both_kinds
@both_forms
@pytest.mark.parametrize("length", [1, 2, 11])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    build: Any, errors_to_twin: Any, kind: str, causal: bool, length: int, padded: bool
) -> None:
    mixer = build(kernel(kind), length=11, causal=causal)
    real = torch.rand(3, length) < torch.tensor([0.8, 0.4, 0.0])[:, None] if padded else None
    forward, backward = errors_to_twin(mixer, 2 * torch.randn(3, length, 8).double(), real)
    assert forward < 1e-10
    assert backward < 1e-9


@both_forms
def test_float32_is_near_the_twin_where_the_exponentials_overflow(
    build: Any, errors_to_twin: Any, causal: bool
) -> None:
    mixer = build(kernel(), dtype=torch.float32, length=11, causal=causal)
    with torch.no_grad():
        mixer.qkv.weight[:16] *= 6  # |x'|^2 / 2 is several hundreds.
    forward, backward = errors_to_twin(mixer, torch.randn(3, 11, 8))
    assert forward < 1e-3
    assert backward < 1e-2


@both_kinds
@both_forms
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("case", ["large", "identical", "one_real", "zero"])
def test_extremes_are_finite(build: Any, kind: str, causal: bool, autocast: bool, case: str) -> None:
    attend = build(kernel(kind), dtype=torch.float32, length=70, causal=causal).kernel
    q, k, v = (torch.randn(2, 2, 70, 4) for _ in range(3))
    real = (torch.arange(70) == 33).expand(2, 70) if case == "one_real" else None
    if case == "large":
        q, k = 120 * q.sign(), 120 * k.sign()
    elif case == "identical":
        q, k, v = (x[:, :, :1].expand_as(x) for x in (q, k, v))
    elif case == "zero":
        q, k = torch.zeros_like(q), torch.zeros_like(k)
    dtype = torch.bfloat16 if autocast else torch.float32
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = attend(*leaves, real)
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out.float().square().sum(), leaves):
        assert gradient.isfinite().all()


@both_kinds
def test_gradcheck(kind: str) -> None:
    torch.manual_seed(0)
    phi = feature_map(3, kind=kind).double()
    x = torch.randn(5, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(phi, x)
    features, log_scale = phi.scaled(x)
    scale = 1.0 if log_scale is None else log_scale.exp()
    cotangent = torch.randn_like(features)
    got = torch.autograd.grad((features * scale * cotangent).sum(), x)[0]
    assert torch.allclose(got, torch.autograd.grad((phi(x) * cotangent).sum(), x)[0])


@both_kinds
def test_later_tokens_change_no_bit(build: Any, kind: str) -> None:
    mixer = build(kernel(kind), dtype=torch.float32, length=150, causal=True)
    x = torch.randn(2, 150, 8)
    y = mixer(x)
    for t in (1, 5, 63, 64, 100):
        other = x.clone()
        other[:, t:] = 10 * torch.randn(2, 150 - t, 8)
        assert torch.equal(mixer(other)[:, :t], y[:, :t])


@both_kinds
def test_steps_are_the_parallel_form(build: Any, largest_error: Any, kind: str) -> None:
    mixer = build(kernel(kind), length=20, causal=True)
    x = 2 * torch.randn(2, 20, 8).double()
    state, outputs = mixer.initial_state(2), []
    for t in range(20):
        y, state = mixer.step(x[:, t], state)
        outputs.append(y)
    assert largest_error(torch.stack(outputs, 1), mixer(x)) < 1e-10


def test_compiles_without_graph_breaks_and_sees_a_new_draw(build: Any) -> None:
    torch.compiler.reset()
    mixer = build(kernel(redraw_interval=1), dtype=torch.float32)
    x = torch.randn(2, 9, 8)
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    before = compiled(x)
    mixer.kernel.feature_map.start_step(1)
    assert torch.allclose(compiled(x), mixer(x), atol=1e-6)
    assert (compiled(x) - before).abs().max() > 1e-3


def test_the_matrix_is_redrawn_at_its_steps_only() -> None:
    phi = feature_map(redraw_interval=3)
    assert isinstance(phi, StartsSteps)
    seen = []
    for step in range(9):
        phi.start_step(step)
        seen.append(phi.matrix.clone())
    for step in range(9):
        assert torch.equal(seen[step], seen[step // 3 * 3])
    assert len({matrix.sum().item() for matrix in seen}) == 3
    kept = feature_map(redraw_interval=None)
    matrix = kept.matrix.clone()
    kept.start_step(10**6)
    assert torch.equal(kept.matrix, matrix)


def test_layers_draw_each_their_own() -> None:
    assert not torch.equal(feature_map().matrix, feature_map().matrix)


@pytest.mark.parametrize("other_step", [0, 5])
def test_a_loaded_map_continues_with_the_same_matrices(other_step: int) -> None:
    unbroken = feature_map(redraw_interval=2)
    unbroken.start_step(3)
    state = copy.deepcopy(unbroken.state_dict())
    resumed = feature_map(redraw_interval=2)
    resumed.start_step(other_step)  # It may be at the draw that comes next, of a seed of its own.
    resumed.load_state_dict(state)
    assert torch.equal(resumed.matrix, unbroken.matrix)
    for step in (4, 5, 6, 7):
        unbroken.start_step(step)
        resumed.start_step(step)
        assert torch.equal(resumed.matrix, unbroken.matrix)


def test_a_map_that_was_moved_draws_in_its_type() -> None:
    phi = feature_map(redraw_interval=1)
    wide = copy.deepcopy(phi).double()
    phi.start_step(4)
    wide.start_step(4)
    assert wide.matrix.dtype == torch.float64
    assert torch.equal(wide.matrix.float(), phi.matrix)
