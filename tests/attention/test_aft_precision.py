"""Half precision, autocast and sums without a normaliser, for every AFT: types, shapes and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reattend.attention import MixerSpec
from reattend.attention.aft.conv import AFTConv
from reattend.attention.aft.full import AFTFull
from reattend.attention.aft.local import AFTLocal
from reattend.attention.aft.mixer import AFTMixer
from reattend.attention.aft.simple import AFTSimple
from reattend.attention.contract import split_losses
from reattend.attention.ops import relative_average
from reattend.efficiency.flops import count_flops

LENGTH = 90
KINDS: list[Any] = [
    pytest.param(AFTSimple, {}, id="simple"),
    pytest.param(AFTFull, {}, id="full"),
    pytest.param(AFTFull, {"bias_rank": 3}, id="full-factorised"),
    pytest.param(AFTLocal, {"window": 0}, id="local-simple"),
    pytest.param(AFTLocal, {"window": 60}, id="local-dense"),
    pytest.param(AFTLocal, {"window": 3}, id="local"),
    pytest.param(AFTLocal, {"window": 5, "bias_rank": 3}, id="local-factorised"),
    pytest.param(AFTLocal, {"window": 2, "outside": "minus_infinity"}, id="local-alone"),
    pytest.param(AFTConv, {"kernel_size": 5, "num_filters": 8}, id="conv"),
    pytest.param(AFTConv, {"kernel_size": 5, "signed": True}, id="conv-signed"),
    pytest.param(AFTConv, {"kernel_size": 3, "outside": "minus_infinity"}, id="conv-alone"),
]
WITH_BIASES = [kind for kind in KINDS if "simple" not in kind.id]


def build(kind: type[AFTMixer], causal: bool = False, grid: Any = None, **options: Any) -> AFTMixer:
    torch.manual_seed(0)
    mixer = kind(MixerSpec(8, 2, LENGTH, grid, causal=causal), **options).eval()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return mixer


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu", "softplus", "identity", "none"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_an_output_has_the_shape_of_its_input(
    kind: Any, options: Any, activation: Any, causal: bool, normalised: bool
) -> None:
    mixer = build(kind, causal, query_activation=activation, normalised=normalised, **options)
    for x in (torch.randn(2, LENGTH, 8), torch.randn(2, 1, 8), torch.randn(1, 5, 8)):
        y, gapped = (split_losses(mixer(x, mask))[0] for mask in (None, torch.rand(x.shape[:2]) < 0.5))
        assert y.shape == gapped.shape == x.shape
        y.add_(x)  # As a backbone may: no two entries share memory.
        if causal:
            assert mixer.step(x[:, 0], mixer.initial_state(len(x)))[0].shape == x[:, 0].shape


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_no_token_is_refused_by_name(kind: Any, options: Any) -> None:
    for causal in (False, True):
        with pytest.raises(ValueError, match="there is no token"):
            build(kind, causal, **options)(torch.randn(2, 0, 8))


@pytest.mark.parametrize(("kind", "options"), WITH_BIASES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_keep_their_precision_under_autocast(kind: Any, options: Any, causal: bool, dtype: torch.dtype) -> None:
    mixer, x = build(kind, causal, entropy_loss=True, **options), torch.randn(2, LENGTH, 8)
    wanted = split_losses(mixer(x))[1]
    with torch.autocast("cpu", dtype):
        got = split_losses(mixer(x))[1]
    assert wanted.keys() == got.keys() == {"bias_entropy"}
    for name, loss in got.items():
        assert loss.dtype == torch.float32
        assert torch.equal(loss, wanted[name])
    # A whole module of that type has its rounded parameters' losses.
    half = mixer.to(dtype)
    (loss,) = split_losses(half(x.to(dtype)))[1].values()
    (exact,) = split_losses(half.float()(x))[1].values()
    assert loss.dtype == torch.float32
    assert torch.allclose(loss, exact, rtol=1e-2 if kind is AFTConv else 1e-6)


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_implied_map_is_that_of_the_output_under_autocast(
    kind: Any, options: Any, normalised: bool, dtype: torch.dtype
) -> None:
    mixer, x = build(kind, normalised=normalised, output_projection=False, **options), torch.randn(2, LENGTH, 8)
    with torch.autocast("cpu", dtype):
        weights, value, y = mixer.implied_map(x), mixer._queries_keys_values(x)[2], split_losses(mixer(x))[0]
    assert weights.dtype == torch.float32
    wanted = torch.einsum("bcts,bsc->btc", weights, value)
    assert torch.allclose(y, wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_sums_without_a_normaliser_fit_float16(kind: Any, options: Any, causal: bool, whole: bool) -> None:
    mixer, x = build(kind, causal, normalised=False, **options), 6 * torch.randn(2, LENGTH, 8)
    x.requires_grad_()
    if whole:
        mixer = mixer.half()
    with torch.autocast("cpu", torch.float16, enabled=not whole):
        y = split_losses(mixer(x.half() if whole else x))[0]
        first, _ = mixer.step(x[:, 0], mixer.initial_state(2)) if causal and not whole else (y[:, 0], None)
    assert y.isfinite().all()
    assert torch.allclose(first, y[:, 0], rtol=1e-2, atol=1e-2 * y.abs().max().item())
    gradients = torch.autograd.grad(y.float().mean(), [x, *mixer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(("low", "high"), [(41.0, 100.0), (61.0, 120.0), (-120.0, 120.0)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("kind", "options", "is_convolved"),
    [pytest.param(*kind.values, False, id=kind.id) for kind in KINDS]
    + [pytest.param(*kind.values, True, id=f"{kind.id}-convolved") for kind in KINDS if kind.values[0] is AFTConv],
)
def test_gradients_of_large_sums_are_finite(
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    options: Any,
    is_convolved: bool,
    late: bool,
    causal: bool,
    low: float,
    high: float,
) -> None:
    """A sum of exp(30) for its gradient, whose terms lie exp(59) and more apart; against float64."""
    monkeypatch.setattr(relative_average, "is_convolved", lambda *_: is_convolved)
    mixer = build(kind, causal, normalised=False, output_projection=False, query_activation="none", **options)
    key = torch.full((1, LENGTH, mixer.qkv_dims[1]), low)
    key[:, LENGTH // 2 :] = high
    tensors = [key if late else key.flip(1), torch.randn(1, LENGTH, 8)]
    names = [name for name, _ in mixer.named_parameters() if not name.startswith("qkv")]
    found = []
    for dtype in (torch.float32, torch.float64):
        mixer = mixer.to(dtype)
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        monkeypatch.setattr(mixer, "_queries_keys_values", lambda _, leaves=leaves: (leaves[0][..., :0], *leaves))
        y = split_losses(mixer(torch.zeros(1, LENGTH, 8, dtype=dtype)))[0]
        leaves += [mixer.get_parameter(name) for name in names]
        found.append(torch.autograd.grad(y.sum(), leaves, materialize_grads=True, allow_unused=True))
    for name, got, wanted in zip(["key", "value", *names], *found, strict=True):
        assert got.isfinite().all(), name
        # What is left of a gradient that cancels is rounding of sums of exp(30).
        assert (got - wanted).abs().max() <= 1e-4 * wanted.abs().max() + 1e-5 * math.exp(30), name


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize(("causal", "grid"), [(False, None), (True, None), (False, (9, 10))])
def test_operations_are_counted_as_stated(kind: Any, options: Any, causal: bool, grid: Any) -> None:
    """Products alone are counted; what is stated beyond them is a few operations for a channel and an exponential."""
    mixer = build(kind, causal, grid, **options)
    for length in (LENGTH,) if grid else (40, LENGTH):
        counted = count_flops(mixer, {"x": torch.randn(1, length, 8)})
        stated = mixer.flops(length)
        assert 0 <= stated - counted <= (14 * 8 + LENGTH) * length


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_every_parameter_gets_a_gradient(kind: Any, options: Any) -> None:
    for causal in (False, True):
        mixer = build(kind, causal, **options)
        x: Tensor = torch.randn(2, LENGTH, 8)
        split_losses(mixer(x))[0].sin().sum().backward()
        for name, parameter in mixer.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name
    assert isinstance(mixer.proj, nn.Linear)
