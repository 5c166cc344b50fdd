"""Padding, prefix tokens, and what forward refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.scaled_heads import ScaledHeads

COMBINATIONS = [
    {"kernel": kernel, "recenter": recenter, "scaled_heads": scaled}
    for kernel in ("softmax", {"name": "softmax", "fused": False}, "linear")
    for recenter in (None, {"beta": 0.5, "learnable": True, "std": True})
    for scaled in (None, {"scales": [1, 2]}, {"scales": [3, 20], "pooling": "stride"})
]
WITH_CAUSAL = [(options, False) for options in COMBINATIONS] + [
    (options, True)
    for options in COMBINATIONS
    if not MultiHeadAttention.problems(MixerSpec(8, 2, 9, causal=True), **options)
]


def padded(length: int, more: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch with its mask, and `more` padding behind it."""
    x = torch.randn(2, length, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x = torch.cat([x, torch.randn(2, more, 8, dtype=torch.float64)], dim=1)
    return x, torch.arange(length + more) < torch.tensor([[length], [4]])


@pytest.mark.parametrize(("options", "causal"), WITH_CAUSAL)
def test_real_tokens_are_blind_to_padding(build: Any, options: dict[str, Any], causal: bool) -> None:
    mixer = build(options, causal=causal)
    x, real = padded(7)
    y = mixer(x, real)
    other = torch.where(real[..., None], x, 50 * torch.randn_like(x))
    longer, longer_real = padded(7, more=4)
    for got, mask in ((mixer(other, real), real), (mixer(longer, longer_real)[:, :7], real)):
        assert torch.allclose(got[mask], y[mask], rtol=0, atol=1e-12)
    alone = mixer(x[1:, :4])
    assert torch.allclose(y[1:, :4], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", COMBINATIONS)
def test_context_is_blind_to_its_padding(build: Any, options: dict[str, Any]) -> None:
    mixer = build(options)
    x, _ = padded(5)
    context, real = padded(7)
    other = torch.where(real[..., None], context, 50 * torch.randn_like(context))
    y = mixer(x, None, context, real)
    assert torch.allclose(mixer(x, None, other, real), y, rtol=0, atol=1e-12)
    assert torch.allclose(mixer(x[1:], None, context[1:, :4]), y[1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("options", "causal"), WITH_CAUSAL)
def test_a_sample_without_a_real_key_gives_zero_and_no_gradient(
    build: Any, options: dict[str, Any], causal: bool
) -> None:
    mixer = build(options, causal=causal)
    x = torch.randn(1, 7, 8, dtype=torch.float64, requires_grad=True)
    y = mixer(x, torch.zeros(1, 7, dtype=torch.bool))
    assert not y.any()
    gradients = torch.autograd.grad(y.sum(), [x, *mixer.parameters()])
    assert not any(gradient.any() for gradient in gradients)


def test_pooling_keeps_prefix_tokens_and_averages_a_short_last_window() -> None:
    x = torch.arange(8.0).reshape(1, 1, 8, 1)
    mean, stride = (ScaledHeads(MixerSpec(1, 1, 8), scales=[3], pooling=p) for p in ("mean", "stride"))
    assert mean.pool(x, x, None, 3, 1)[0].flatten().tolist() == [0, 2, 5, 7]
    assert stride.pool(x, x, None, 3, 1)[0].flatten().tolist() == [0, 1, 4, 7]
    real = torch.tensor([[True, False, True, True, False, False, False, True]])
    k, v, mask = mean.pool(x, x, real, 3, 1)
    assert k.flatten().tolist() == v.flatten().tolist() == [0, 2.5, 0, 7]
    assert mask is not None
    assert mask.tolist() == [[True, True, False, True]]
    # Striding picks the first real token: a window with one is never lost.
    assert stride.pool(x, x, real, 3, 1)[0].flatten().tolist() == [0, 2, 0, 7]
    assert [ScaledHeads.num_windows(n, 3, 1) for n in (1, 2, 4, 5, 8)] == [1, 2, 2, 3, 4]


def test_heads_of_one_scale_go_through_one_call(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = build({"scaled_heads": {"scales": [1, 2, 1, 2]}}, num_heads=4)
    heads_of_call = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def count(q: torch.Tensor, k: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        heads_of_call.append((q.shape[1], k.shape[2]))
        return attend(q, k, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", count)
    mixer(torch.randn(2, 9, 8, dtype=torch.float64))
    assert heads_of_call == [(2, 9), (2, 5)]


def test_forward_refuses_what_has_no_meaning(build: Any) -> None:
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="padding_mask must be bool"):
        build({})(x, torch.ones(2, 9))
    with pytest.raises(ValueError, match="without a context"):
        build({})(x, None, None, torch.ones(2, 9, dtype=torch.bool))
    with pytest.raises(ValueError, match="causal mixer takes no context"):
        build({}, causal=True)(x, None, x)
