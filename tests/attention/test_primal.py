"""Primal-Attention: the twin, the singular value decomposition that its objective has, initial values, mixing, rows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, split_losses
from reattend.attention.naive import primal as naive
from reattend.attention.ops.even_rows import even_rows
from reattend.attention.primal import Primal
from reattend.errors import ReattendError

FORMS: list[dict[str, Any]] = [
    {},
    {"data_dependent": False},
    {"r_scores": False, "bias": False},
    {"over_tokens": "sum", "multiplier_form": "exponential"},
    {"rows": "all", "loss_tokens": "all"},
    {"rows": "all", "square": "batch"},
    {"loss_tokens": "all", "rank": 7},
]


def build(length: int = 9, dtype: torch.dtype = torch.float64, *, causal: bool = False, **options: Any) -> Primal:
    torch.manual_seed(0)
    spec = MixerSpec(8, 2, length, causal=causal, layer=1, num_layers=2)
    mixer = Primal(spec, **{"rank": 3, "rank_multi": 2, **options}).to(dtype)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return mixer


def padding(length: int) -> Tensor:
    """Padding anywhere, one real token, and none."""
    mask = torch.rand(4, length, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[2:] = False
    mask[2, length // 2] = True
    return mask


def values(y: Tensor, losses: dict[str, Tensor]) -> Tensor:
    return torch.cat([y.flatten(), *(losses[name].flatten() for name in sorted(losses))])


@pytest.mark.parametrize(("causal", "form"), [*itertools.product([False], FORMS), *((True, f) for f in FORMS[1:4])])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [9, 4])
def test_outputs_losses_and_gradients_are_the_twins(
    largest_error: Any, causal: bool, form: dict[str, Any], padded: bool, length: int
) -> None:
    mixer = build(causal=causal, **form)
    x = torch.randn(4, length, 8, dtype=torch.float64, requires_grad=True)
    mask = padding(length) if padded else None
    (y, losses), (twin, twin_losses) = mixer(x, mask), naive.forward(mixer, x, mask)
    assert losses.keys() == twin_losses.keys()
    got, wanted = values(y, losses), values(twin, twin_losses)
    leaves = [x, *mixer.parameters()]
    cotangent = torch.randn_like(got)
    slopes, wanted_slopes = (torch.autograd.grad((v * cotangent).sum(), leaves) for v in (got, wanted))
    floor = 0.01 * max(w.abs().max().item() for w in wanted_slopes)
    assert largest_error(got, wanted) < 1e-11
    assert max(largest_error(g, w, floor) for g, w in zip(slopes, wanted_slopes, strict=True)) < 1e-10


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck(causal: bool) -> None:
    mixer = build(5, causal=causal)
    x = torch.randn(1, 4, 8, dtype=torch.float64, requires_grad=True)
    real = torch.tensor([[True, True, False, True]])
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        return values(*torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, real)))

    assert torch.autograd.gradcheck(run, (x, *mixer.parameters()), fast_mode=True)


def features(mixer: Primal, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(X) phi_q and f(X) phi_k of one sample, (H, N, n), from the formulas."""
    q, k = mixer.qk(x[0]).unflatten(1, (2, mixer.spec.num_heads, -1)).permute(1, 2, 0, 3)
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    if not mixer.data_dependent:
        return q, k
    rows = even_rows(x, None, mixer.weight_e.shape[1])[0].unflatten(1, (mixer.spec.num_heads, -1)).transpose(0, 1)
    return q @ rows.mT, k @ rows.mT


@pytest.mark.parametrize("data_dependent", [True, False])
@pytest.mark.parametrize(("over_tokens", "form"), list(itertools.product(["mean", "sum"], ["square", "exponential"])))
def test_the_objective_is_zero_and_stationary_at_the_singular_value_decomposition(
    data_dependent: bool, over_tokens: Any, form: Any
) -> None:
    mixer = build(11, data_dependent=data_dependent, over_tokens=over_tokens, multiplier_form=form, square="batch")
    x = torch.randn(1, 11, 8, dtype=torch.float64)
    with torch.no_grad():
        f_q, f_k = features(mixer, x)
        u, sigma, vh = torch.linalg.svd(f_q @ f_k.mT)
        u, sigma, v = u[..., :3], sigma[..., :3], vh.mT[..., :3]
        mixer.weight_e.copy_(f_k.mT @ v)
        mixer.weight_r.copy_(f_q.mT @ u)
        inverse = (11 if over_tokens == "mean" else 1) / sigma
        mixer.multipliers.copy_(inverse.sqrt() if form == "square" else inverse.log())
    objective = mixer(x)[1]["ksvd^2"].sum()
    scale = sigma.sum().item()
    assert abs(objective.item()) < 1e-12 * scale
    for slope in torch.autograd.grad(objective, [mixer.weight_e, mixer.weight_r]):
        assert slope.abs().max() < 1e-12 * scale
    with torch.no_grad():
        mixer.weight_e.mul_(1.1)
    moved = mixer(x)[1]["ksvd^2"].sum()
    assert abs(moved.item()) > 1e-3 * scale
    assert torch.autograd.grad(moved, mixer.weight_e)[0].abs().max() > 1e-3 * scale


@pytest.mark.parametrize("projected", [False, True])
def test_singular_values_are_those_of_the_kernel_matrix(projected: bool) -> None:
    for length in (11, 3):
        mixer = build(11)
        x = torch.randn(1, length, 8, dtype=torch.float64)
        q, k = mixer.qk(x[0]).unflatten(1, (2, 2, -1)).permute(1, 2, 0, 3)
        f_q, f_k = features(mixer, x) if projected else (torch.nn.functional.normalize(z, dim=-1) for z in (q, k))
        wanted = torch.linalg.svdvals(f_q @ f_k.mT)[:, : min(length, 4)]
        padded = torch.cat([x, torch.randn(1, 2, 8, dtype=torch.float64)], 1)[:, :11]
        mask = torch.arange(padded.shape[1])[None] < length
        torch.testing.assert_close(mixer.singular_values(x, projected=projected)[0], wanted)
        masked = mixer.singular_values(padded, mask, projected=projected)[0, :, : wanted.shape[1]]
        torch.testing.assert_close(masked, wanted)


def test_shapes_and_initial_values() -> None:
    torch.manual_seed(0)
    mixer = Primal(MixerSpec(128, 8, 197), rank=30, rank_multi=5)
    assert mixer.weight_e.shape == mixer.weight_r.shape == (8, 150, 30)
    assert mixer.multipliers.shape == (8, 30)
    assert (mixer.concat.in_features, mixer.concat.out_features) == (60, 16)
    assert sum(p.numel() for p in mixer.parameters()) == 2 * 8 * 150 * 30 + 240 + 61 * 16 + 3 * 128 * 129
    flat = mixer.weight_e.flatten(1)
    torch.testing.assert_close(flat @ flat.T, torch.eye(8), rtol=0, atol=1e-5)
    # Norm 1 is that of the head's whole matrix: columns are far from orthonormal.
    assert 0.15 < mixer.weight_e.norm(dim=1).mean() < 0.22
    assert (mixer.weight_e * mixer.weight_r).sum((1, 2)).mean().abs() < 0.02
    assert 0 <= mixer.multipliers.min() < 0.1 < 0.9 < mixer.multipliers.max() < 1
    positive = Primal(MixerSpec(128, 8, 197), multiplier_form="exponential").multipliers.exp()
    assert 0 < positive.min() < 0.1 < 0.9 < positive.max() <= 1
    assert Primal(MixerSpec(128, 8, 100), rank=30).weight_e.shape == (8, 100, 30)
    assert Primal(MixerSpec(128, 8, 100, causal=True), rank=30).weight_e.shape == (8, 16, 30)
    assert Primal(MixerSpec(128, 8, 100), rank=30, r_scores=False).concat.in_features == 30
    mixer = Primal(MixerSpec(128, 2, 9))
    bound = 1 / 128**0.5  # torch's own initialisation of linear layers, as in the followed code
    assert 0.95 * bound < mixer.qk.weight.abs().max() <= bound


@pytest.mark.parametrize("form", ["square", "exponential"])
def test_the_objective_of_sums_starts_where_that_of_means_does(form: Any) -> None:
    objectives = []
    for over in ("mean", "sum"):
        torch.manual_seed(0)
        mixer = Primal(MixerSpec(8, 2, 9), rank=3, over_tokens=over, multiplier_form=form)  # type: ignore[arg-type]
        objectives.append(mixer(torch.ones(1, 9, 8))[1]["ksvd/J/0"])
    torch.testing.assert_close(objectives[1], objectives[0])


def test_a_rank_above_the_width_is_allowed_and_noted() -> None:
    assert "rank=7, above the head's width 4: no constraint" in repr(build(rank=7))
    assert "constraint" not in repr(build())


def test_parts_of_the_objective_are_measured() -> None:
    mixer = build()
    losses = mixer(torch.randn(3, 9, 8, dtype=torch.float64))[1]
    a_e, a_r, trace, objective, multipliers = (losses[f"ksvd/{name}/1"] for name in ("A_e", "A_r", "T", "J", "L"))
    torch.testing.assert_close(objective, a_e + a_r - trace)
    torch.testing.assert_close(losses["ksvd"], objective**2)
    torch.testing.assert_close(multipliers[0], mixer.multipliers.square().mean())


@pytest.mark.parametrize(("form", "mixes"), [({"data_dependent": False}, False), ({}, True)])
def test_tokens_mix_through_the_data_dependent_weights_alone(form: dict[str, Any], mixes: bool) -> None:
    mixer = build(**form)
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    changed = x.clone()
    changed[:, 0] += 1.0  # the first row is always sampled
    same = torch.equal(mixer(x)[0][:, 1:], mixer(changed)[0][:, 1:])
    assert same != mixes
    assert ("token_mixing" in Primal.capabilities(**form).reasons) != mixes


def test_causal_tokens_mix_through_prefix_means() -> None:
    mixer = build(causal=True)
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    means = x.cumsum(1) / torch.arange(1, 10)[:, None]
    plain = build(data_dependent=False)
    plain.load_state_dict(mixer.state_dict())
    torch.testing.assert_close(mixer(x)[0], plain(means)[0])


@pytest.mark.parametrize("length", [1, 2, 7, 30])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 30])
def test_rows_are_even_and_real(length: int, num_rows: int) -> None:
    mask = torch.rand(3, 50, generator=torch.Generator().manual_seed(length)).argsort(1) < length
    x = torch.arange(50.0)[None, :, None].expand(3, -1, 1)
    rows = even_rows(x, mask, num_rows)[..., 0]
    for b in range(3):
        real = mask[b].nonzero()[:, 0]
        wanted = real[[i * (length - 1) // max(num_rows - 1, 1) for i in range(num_rows)]]
        assert torch.equal(rows[b], wanted.float())
    assert rows[0, 0] == mask[0].nonzero()[0, 0]
    if num_rows == length:
        assert torch.equal(rows[0], mask[0].nonzero()[:, 0].float())


def test_padding_on_purpose_moves_what_it_says() -> None:
    mask = torch.arange(9)[None] < 5
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    other = torch.where(mask[..., None], x, x + 1)
    for form, moved in (
        ({}, (False, False)),
        ({"rows": "all"}, (True, True)),
        ({"loss_tokens": "all"}, (False, True)),
    ):
        mixer = build(**form)
        (y, losses), (y_other, losses_other) = mixer(x, mask), mixer(other, mask)
        same = torch.equal(y[mask], y_other[mask]), torch.equal(losses["ksvd"], losses_other["ksvd"])
        assert tuple(not s for s in same) == moved
        capabilities = Primal.capabilities(**form)
        assert capabilities.padding_mask != ("padding_on_purpose" in capabilities.reasons)
        assert capabilities.padding_mask != any(moved)


def test_the_core_is_float32_under_autocast() -> None:
    mixer = build(40, torch.float32)
    x = torch.randn(2, 40, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y, losses = split_losses(mixer(x))
    assert y.dtype == torch.bfloat16
    assert all(loss.dtype == torch.float32 for loss in losses.values())
    assert (losses["ksvd"] - mixer(x)[1]["ksvd"]).abs().max() < 0.03 * losses["ksvd"].abs().max()


def test_zero_and_tiny_queries() -> None:
    mixer = build(dtype=torch.float32, bias=False)
    x = torch.randn(1, 9, 8)
    zero = torch.zeros_like(x).requires_grad_()
    y, losses = mixer(zero)
    assert not y.any()
    (y.sum() + losses["ksvd"].sum()).backward()
    assert zero.grad is not None
    assert zero.grad.isfinite().all()
    plain = build(dtype=torch.float32, bias=False, data_dependent=False)
    torch.testing.assert_close(plain(1e-25 * x)[0], plain(x)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_step_is_the_parallel_form_with_a_state_of_one_size(causal: bool) -> None:
    mixer = build(causal=True, r_scores=causal)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    state = mixer.initial_state(2)
    outputs = []
    for x_t in x.unbind(1):
        y, state = mixer.step(x_t, state)
        outputs.append(y)
    assert state["sums"].shape == (2, 16)
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x)[0])


def test_what_cannot_be_built_is_refused() -> None:
    spec = MixerSpec(8, 2, 9, causal=True)
    with pytest.raises(ReattendError, match="rank=0 must be at least 1"):
        Primal(MixerSpec(8, 2, 9), rank=0)
    with pytest.raises(ReattendError, match="set data_dependent=false"):
        Primal(spec, data_dependent=True)
    assert Primal.problems(spec) == []
    with pytest.raises(ValueError, match="takes no context"):
        build()(torch.randn(1, 9, 8).double(), context=torch.randn(1, 9, 8).double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_a_module_in_half_precision_works(dtype: torch.dtype, causal: bool) -> None:
    torch.manual_seed(0)
    mixer = Primal(MixerSpec(dim=12, num_heads=3, max_length=13, causal=causal), rank=5)
    x = torch.randn(2, 13, 12)
    expected, expected_losses = mixer(x)
    y, losses = mixer.to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), expected, rtol=3e-2, atol=3e-2)
    torch.testing.assert_close(losses["ksvd"], expected_losses["ksvd"], rtol=0.1, atol=1e-2)
    if causal:
        out, _ = mixer.step(x[:, 0].to(dtype), mixer.initial_state(2))
        torch.testing.assert_close(out, y[:, 0], rtol=3e-2, atol=3e-2)


def test_only_the_causal_form_steps() -> None:
    mixer = Primal(MixerSpec(dim=8, num_heads=2, max_length=9), rank=3)
    with pytest.raises(ValueError, match="causal"):
        mixer.step(torch.zeros(1, 8), mixer.initial_state(1))
