"""Local attention in blocks: the twin, masked softmax, what a block sees, decoding and extremes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.kernels import image_transformer
from reattend.attention.slot_choices import SlotChoices
from reattend.errors import ReattendError


@pytest.fixture
def blocks_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences in many blocks; with the true smallest block they are one."""
    monkeypatch.setattr(image_transformer, "SMALLEST_BLOCK", 2)


def options(window: int | None, memory: int | None = None) -> dict[str, Any]:
    return {"kernel": {"name": "image_transformer", "window": window, "memory": memory}}


def padding(length: int) -> Tensor:
    """Padding anywhere, one real token, and none."""
    mask = torch.rand(4, length, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[2:] = False
    mask[2, length // 2] = True
    return mask


@pytest.mark.parametrize(("causal", "prefix"), [(False, 0), (False, 2), (True, 0), (True, 2)])
@pytest.mark.parametrize(("window", "memory"), [(3, None), (4, 1), (2, 5), (1, 0), (40, None)])
@pytest.mark.parametrize("length", [2, 13])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_twins(
    build: Any,
    errors_to_twin: Any,
    blocks_of_two: None,
    window: int,
    memory: int | None,
    length: int,
    causal: bool,
    prefix: int,
    padded: bool,
) -> None:
    mixer = build(options(window, memory), length=length, causal=causal, prefix_tokens=prefix)
    x = torch.randn(4, length, 8, dtype=torch.float64)
    forward, backward = errors_to_twin(mixer, x, padding(length) if padded else None)
    assert forward < 1e-11
    assert backward < 1e-10


@pytest.mark.parametrize("recentred", [{"recenter": {"beta": 0.7}}, {"recenter": {"beta": 0.7, "std": True}}])
def test_it_goes_with_recentring(build: Any, errors_to_twin: Any, recentred: dict[str, Any]) -> None:
    mixer = build(options(3) | recentred, length=11)
    forward, backward = errors_to_twin(mixer, torch.randn(4, 11, 8, dtype=torch.float64), padding(11))
    assert forward < 1e-11
    assert backward < 1e-10


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "memory"), [(20, None), (70, 30), (7, 100)])
def test_float32_is_its_attention_map_in_blocks_of_64(build: Any, causal: bool, window: int, memory: int) -> None:
    mixer = build(options(window, memory), length=150, dtype=torch.float32, causal=causal)
    x, real = torch.randn(4, 150, 8), padding(150)
    v = mixer._queries_keys_values(x)[2]
    for mask in (None, real):
        wanted = mixer._merge([mixer.attention_map(x, mask) @ v], v.dtype)
        wanted = wanted if mask is None else wanted.masked_fill(~mask.any(1)[:, None, None], 0.0)
        assert torch.allclose(mixer(x, mask), wanted, atol=5e-6)


def test_all_queries_of_a_block_see_its_memory(build: Any) -> None:
    mixer = build(options(3, 2), length=11, causal=True)
    seen = mixer.attention_map(torch.randn(1, 11, 8, dtype=torch.float64))[0, 0] > 0
    for i in range(11):
        assert seen[i].nonzero().flatten().tolist() == list(range(max(0, i // 3 * 3 - 2), i + 1))
    mixer = build(options(3, 2), length=11)
    seen = mixer.attention_map(torch.randn(1, 11, 8, dtype=torch.float64))[0, 0] > 0
    for i in range(11):
        block = i // 3 * 3
        assert seen[i].nonzero().flatten().tolist() == list(range(max(0, block - 2), min(11, block + 5)))


@pytest.mark.parametrize("causal", [False, True])
def test_one_block_of_all_tokens_is_softmax(build: Any, causal: bool) -> None:
    x, real = torch.randn(4, 13, 8, dtype=torch.float64), padding(13)
    ours, softmax = (build(chosen, length=13, causal=causal) for chosen in (options(13), {}))
    assert torch.allclose(ours(x, real), softmax(x, real), atol=1e-12)


@pytest.mark.parametrize(("window", "memory"), [(3, 2), (2, 0), (1, 4), (30, None)])
def test_steps_are_the_causal_form_with_a_state_of_block_and_memory(
    build: Any, window: int, memory: int | None
) -> None:
    mixer = build(options(window, memory), length=13, causal=True)
    x = torch.randn(2, 13, 8, dtype=torch.float64)
    state, outs = mixer.initial_state(2), []
    assert state["keys"].shape[2] == window + (window if memory is None else memory)
    for t in range(13):
        before = state
        y, state = mixer.step(x[:, t], state)
        outs.append(y)
        assert all(state[name].shape == before[name].shape for name in state)
    assert torch.allclose(torch.stack(outs, dim=1), mixer(x), atol=1e-12)


@pytest.mark.parametrize("window", [7, 64, 90])
def test_the_future_does_not_move_a_bit(build: Any, window: int) -> None:
    mixer = build(options(window), length=150, dtype=torch.float32, causal=True)
    x = torch.randn(2, 150, 8)
    for t in (1, 63, 64, 149):
        other = x.clone()
        other[:, t:] = 50 * torch.randn_like(x[:, t:])
        assert torch.equal(mixer(x)[:, :t], mixer(other)[:, :t])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_extreme_inputs_stay_finite(build: Any, autocast: bool, causal: bool) -> None:
    mixer = build(options(3), length=9, dtype=torch.float32, causal=causal)
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


def test_published_blocks_are_of_256() -> None:
    kernel = image_transformer.ImageTransformerKernel(MixerSpec(8, 2, 3072, causal=True))
    assert (kernel.window, kernel.memory, kernel.after) == (256, 256, 0)
    assert kernel.flops(3072, 3072) == 4 * 3072 * 512 * 4
    assert SlotChoices.among(options(None)).capabilities().constant_state


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (options(0), "window=0 must be at least 1"),
        (options(2, -1), "memory=-1 must not be negative"),
        (options(2) | {"dropout": 0.1}, "dropout"),
        (options(2) | {"scaled_heads": {"scales": 2}}, "needs a key for every token"),
    ],
)
def test_what_cannot_be_built_is_refused(chosen: dict[str, Any], reason: str) -> None:
    with pytest.raises(ReattendError, match=reason):
        MultiHeadAttention(MixerSpec(8, 2, 9), **chosen)
