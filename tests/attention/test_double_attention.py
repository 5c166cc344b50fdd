"""Double attention: the twin, what it shares with efficient attention, decoding and extremes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, MultiHeadAttention, naive
from reattend.attention.double_attention import DoubleAttention
from reattend.errors import ReattendError


def build(length: int = 9, dtype: torch.dtype = torch.float64, causal: bool = False, **options: Any) -> DoubleAttention:
    torch.manual_seed(0)
    mixer = DoubleAttention(MixerSpec(8, 2, length, causal=causal), **options).to(dtype)
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


def errors(mixer: DoubleAttention, largest_error: Any, *inputs: Tensor | None) -> tuple[float, float]:
    leaves = [t.requires_grad_() for t in inputs if t is not None and t.is_floating_point()] + list(mixer.parameters())
    y, twin = mixer(*inputs), naive.forward(mixer, *inputs)
    cotangent = torch.randn_like(twin)
    got = torch.autograd.grad((y * cotangent).sum(), leaves)
    wanted = torch.autograd.grad((twin * cotangent).sum(), leaves)
    floor = 0.01 * max(w.abs().max().item() for w in wanted)
    return largest_error(y, twin), max(largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True))


@pytest.mark.parametrize("widths", [(None, None), (3, 5), (8, 1)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    largest_error: Any, widths: tuple[int | None, int | None], causal: bool, length: int, padded: bool
) -> None:
    mixer = build(length, causal=causal, num_features=widths[0], num_maps=widths[1])
    x = torch.randn(4, length, 8, dtype=torch.float64)
    forward, backward = errors(mixer, largest_error, x, padding(length) if padded else None)
    assert forward < 1e-11
    assert backward < 1e-10


def test_it_gathers_from_a_context(largest_error: Any) -> None:
    x, context = torch.randn(4, 5, 8, dtype=torch.float64), torch.randn(4, 7, 8, dtype=torch.float64)
    forward, backward = errors(build(bias=False), largest_error, x, padding(5), context, padding(7))
    assert forward < 1e-11
    assert backward < 1e-10
    with pytest.raises(ValueError, match="causal mixer takes no context"):
        build(causal=True)(x, None, context)
    with pytest.raises(ValueError, match="without a context"):
        build()(x, None, None, padding(7))


@pytest.mark.parametrize("causal", [False, True])
def test_widths_of_the_layer_are_efficient_attention_with_one_head(causal: bool) -> None:
    ours = build(causal=causal, num_features=8, num_maps=8)
    efficient = MultiHeadAttention(MixerSpec(8, 1, 9, causal=causal), kernel="efficient").double()
    with torch.no_grad():
        features, maps = ours.gather.weight.split(8)
        efficient.qkv.weight.copy_(torch.cat([ours.distribute.weight, maps, features]))
        features, maps = ours.gather.bias.split(8)
        efficient.qkv.bias.copy_(torch.cat([ours.distribute.bias, maps, features]))
        efficient.proj.load_state_dict(ours.proj.state_dict())
    x = torch.randn(4, 9, 8, dtype=torch.float64)
    for mask in (None, padding(9)):
        assert torch.allclose(ours(x, mask), efficient(x, mask), atol=1e-12)


def test_the_map_averages_gathered_features() -> None:
    for causal in (False, True):
        mixer, x, real = build(causal=causal), torch.randn(4, 9, 8, dtype=torch.float64), padding(9)
        real[:3, 0] = True
        weights = mixer.attention_map(x, real)
        assert weights.shape == (4, 2, 9, 9)
        assert torch.allclose(weights[:3].sum(-1), torch.ones(()).double())
        y = mixer.proj(weights[:, 0] @ mixer._gathered(x)[0][:, 0])
        assert torch.allclose(mixer(x, real)[:3], y[:3], atol=1e-12)


def test_steps_are_the_causal_form_with_a_state_of_one_size() -> None:
    mixer, x = build(causal=True, num_features=3, num_maps=5), torch.randn(2, 9, 8, dtype=torch.float64)
    state, outs = mixer.initial_state(2), []
    for t in range(9):
        y, after = mixer.step(x[:, t], state)
        assert all(after[name].shape == state[name].shape for name in state)
        state = after
        outs.append(y)
    assert torch.allclose(torch.stack(outs, dim=1), mixer(x), atol=1e-12)
    with pytest.raises(ValueError, match="causal=True"):
        build().step(x[:, 0], state)


def test_the_future_does_not_move_a_bit() -> None:
    mixer, x = build(150, torch.float32, causal=True), torch.randn(2, 150, 8)
    for t in (1, 64, 149):
        other = x.clone()
        other[:, t:] = 50 * torch.randn_like(x[:, t:])
        assert torch.equal(mixer(x)[:, :t], mixer(other)[:, :t])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_extreme_inputs_stay_finite(autocast: bool, causal: bool) -> None:
    mixer = build(9, torch.float32, causal=causal)
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


def test_gradcheck() -> None:
    mixer, real = build(num_maps=3), torch.tensor([[True, True, False, True]])
    x = torch.randn(1, 4, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mixer(x, real), x, fast_mode=True)


def test_widths_are_checked_and_default_to_a_quarter() -> None:
    mixer = DoubleAttention(MixerSpec(64, 2, 9))
    assert (mixer.num_features, mixer.num_maps) == (16, 16)
    with pytest.raises(ReattendError, match="num_maps=0 must be at least 1"):
        build(num_maps=0)
