"""Synthesizer: the twin in its four forms, what is exact about them, decoding, memory and extremes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, naive
from reattend.attention.ops import tiled_softmax
from reattend.attention.synthesizer import Synthesizer
from reattend.errors import ReattendError

FORMS = ["dense", "random", "factorised_dense", "factorised_random"]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are formed for a few queries at a time."""
    monkeypatch.setattr(tiled_softmax, "ELEMENTS", 200)


def build(length: int = 9, dtype: torch.dtype = torch.float64, causal: bool = False, **options: Any) -> Synthesizer:
    torch.manual_seed(0)
    mixer = Synthesizer(MixerSpec(8, 2, length, causal=causal), **options).to(dtype)
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


def errors(mixer: Synthesizer, largest_error: Any, x: Tensor, mask: Tensor | None) -> tuple[float, float]:
    leaves = [x.requires_grad_(), *mixer.parameters()]
    y, twin = mixer(x, mask), naive.forward(mixer, x, mask) + 0.0 * sum(leaf.sum() for leaf in leaves)
    cotangent = torch.randn_like(twin)
    got = torch.autograd.grad((y * cotangent).sum(), leaves)
    wanted = torch.autograd.grad((twin * cotangent).sum(), leaves)
    floor = 0.01 * max(w.abs().max().item() for w in wanted)
    return largest_error(y, twin), max(largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [7, 9])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    largest_error: Any, small_blocks: None, form: str, causal: bool, length: int, padded: bool
) -> None:
    mixer = build(causal=causal, logits=form)
    x = torch.randn(4, length, 8, dtype=torch.float64)
    forward, backward = errors(mixer, largest_error, x, padding(length) if padded else None)
    assert forward < 1e-11
    assert backward < 1e-10


@pytest.mark.parametrize(
    "options",
    [
        {"logits": "dense", "hidden_dim": 1},
        {"logits": "dense", "hidden_dim": 6, "bias": False},
        {"logits": "factorised_dense", "tile": 1},
        {"logits": "factorised_dense", "tile": 4, "hidden_dim": 3},
        {"logits": "factorised_dense", "tile": 50},
        {"logits": "factorised_random", "rank": 1},
    ],
)
def test_other_sizes_too(largest_error: Any, options: dict[str, Any]) -> None:
    forward, backward = errors(build(**options), largest_error, torch.randn(4, 8, 8, dtype=torch.float64), padding(8))
    assert forward < 1e-11
    assert backward < 1e-10


@pytest.mark.parametrize("form", FORMS)
def test_the_map_averages_values(form: str) -> None:
    for causal in (False, True):
        mixer, x, real = build(causal=causal, logits=form), torch.randn(4, 9, 8, dtype=torch.float64), padding(9)
        out = mixer.attention_map(x, real) @ mixer._heads(mixer.v(x))
        wanted = mixer.proj(out.transpose(1, 2).flatten(2)).masked_fill(~real.any(1)[:, None, None], 0.0)
        assert torch.allclose(mixer(x, real), wanted, atol=1e-12)


@pytest.mark.parametrize("form", ["random", "factorised_random"])
def test_random_logits_see_no_token(form: str) -> None:
    weights = build(logits=form).attention_map(torch.randn(2, 9, 8, dtype=torch.float64))
    assert torch.equal(weights[0], weights[1])


def test_dense_logits_see_the_query_alone() -> None:
    mixer, x = build(logits="dense"), torch.randn(1, 9, 8, dtype=torch.float64)
    other = torch.randn_like(x)
    other[:, 4] = x[:, 4]
    moved = (mixer.attention_map(x) - mixer.attention_map(other)).abs().amax((0, 1, 3)) > 1e-12
    assert moved.tolist() == [i != 4 for i in range(9)]


def test_tiles_of_one_are_dense_logits() -> None:
    """F = 1 leaves one factor for each position, times one number."""
    mixer = build(logits="factorised_dense", tile=1)
    with torch.no_grad():
        mixer.within.zero_()
        mixer.within_bias.fill_(1.0)
    dense = build(logits="dense")
    dense.load_state_dict(
        {name: value for name, value in mixer.state_dict().items() if name.partition(".")[0] in ("v", "proj", "hidden")}
        | {"columns": mixer.tiles, "columns_bias": mixer.tiles_bias}
    )
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    assert torch.allclose(mixer(x), dense(x), atol=1e-12)


def test_random_of_full_rank_is_the_random_form() -> None:
    mixer, x = build(logits="factorised_random", rank=9), torch.randn(2, 9, 8, dtype=torch.float64)
    other = build(logits="random")
    state = {name: value for name, value in mixer.state_dict().items() if name not in ("rows", "columns")}
    other.load_state_dict(state | {"table": mixer.rows @ mixer.columns.mT})
    assert torch.allclose(mixer(x), other(x), atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_steps_are_the_causal_form(form: str) -> None:
    mixer, x = build(causal=True, logits=form), torch.randn(2, 9, 8, dtype=torch.float64)
    state, outs = mixer.initial_state(2), []
    for t in range(9):
        y, state = mixer.step(x[:, t], state)
        outs.append(y)
    assert torch.allclose(torch.stack(outs, dim=1), mixer(x), atol=1e-12)
    with pytest.raises(ValueError, match="token 10, but logits are learned for 9"):
        mixer.step(x[:, 0], state)
    with pytest.raises(ValueError, match="causal=True"):
        build(logits=form).step(x[:, 0], mixer.initial_state(2))


@pytest.mark.parametrize("form", FORMS)
def test_the_future_does_not_move_a_bit(small_blocks: None, form: str) -> None:
    mixer, x = build(70, torch.float32, causal=True, logits=form), torch.randn(2, 70, 8)
    real = torch.rand(2, 70) < 0.8
    for t in (1, 33, 69):
        other, also = x.clone(), real.clone()
        other[:, t:] = 50 * torch.randn_like(x[:, t:])
        also[:, t:] = torch.rand(2, 70 - t) < 0.5
        real[:, 0] = also[:, 0] = True
        assert torch.equal(mixer(x)[:, :t], mixer(other)[:, :t])
        assert torch.allclose(mixer(x, real)[:, :t], mixer(other, also)[:, :t], atol=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_extreme_inputs_and_logits_stay_finite(form: str, causal: bool, autocast: bool) -> None:
    mixer = build(9, torch.float32, causal=causal, logits=form)
    with torch.no_grad():
        for name in ("table", "columns", "tiles"):
            if hasattr(mixer, name):
                getattr(mixer, name).mul_(120.0)
    x = torch.randn(4, 9, 8)
    x[0] *= 120 / x[0].abs().max()
    x[1] = x[1, :1]
    real = torch.ones(4, 9, dtype=torch.bool)
    real[2, 1:] = False
    real[3] = False
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = mixer(x, real)
    gradients = torch.autograd.grad(y.float().square().sum(), [x, *mixer.parameters()], allow_unused=True)
    assert all(t.isfinite().all() for t in (y, *gradients) if t is not None)
    assert not y[3].any()


@pytest.mark.parametrize("form", FORMS)
def test_float32_is_near_the_twin_at_wide_logits(largest_error: Any, form: str) -> None:
    mixer = build(9, torch.float32, logits=form)
    with torch.no_grad():
        for name in ("table", "columns", "tiles"):
            if hasattr(mixer, name):
                getattr(mixer, name).mul_(60.0)
    x = torch.randn(4, 9, 8)
    assert largest_error(mixer(x, padding(9)), naive.forward(mixer, x, padding(9))) < 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck_of_the_tiled_softmax(small_blocks: None, causal: bool) -> None:
    a, b, v = (torch.randn(1, 2, 5, n, dtype=torch.float64, requires_grad=True) for n in (2, 3, 4))
    mask = torch.tensor([[False, True, True, False, True]])

    def run(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return tiled_softmax.tiled_softmax(a, b, v, mask, causal)

    assert torch.autograd.gradcheck(run, (a, b, v))


def test_parameters_are_as_counted() -> None:
    """d^2 + d N for the dense form in one head, N^2 for the random one, 2 N K for its factors, without biases."""

    def logits(form: str, **options: Any) -> int:
        mixer = Synthesizer(MixerSpec(16, 1, 50), logits=form, **options)
        return sum(p.numel() for name, p in mixer.named_parameters() if "bias" not in name and "v." not in name) - 256

    assert logits("dense") == 16**2 + 16 * 50
    assert logits("random") == 50**2
    assert logits("factorised_random") == 2 * 50 * 8
    assert logits("factorised_dense", tile=10) == 16**2 + 16 * (5 + 10)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rank": 8}, "rank has no effect with logits=dense; it is of logits=factorised_random"),
        ({"logits": "random", "hidden_dim": 4}, "hidden_dim has no effect"),
        ({"logits": "densee"}, "logits"),
        ({"rank": "x"}, "rank"),
        ({"rank": 0}, "rank=0 must be"),
        ({"tile": 0}, "tile=0"),
        ({"hidden_dim": -1}, "hidden_dim"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ReattendError, match=reason):
        build(**options)
    with pytest.raises(ValueError, match="10 tokens, but logits are learned for 9"):
        build()(torch.randn(1, 10, 8).double())
