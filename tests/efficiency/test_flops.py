"""Counted operations against formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.reformer import Reformer
from reattend.efficiency.flops import count_flops

SPEC = MixerSpec(dim=16, num_heads=4, max_length=32)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("scales", [None, [1, 1, 2, 4], [1, 3, 5, 64]])
def test_softmax_as_the_mixer_states(fused: bool, scales: list[int] | None) -> None:
    mixer = MultiHeadAttention(SPEC, kernel={"name": "softmax", "fused": fused}, scaled_heads={"scales": scales})
    assert count_flops(mixer, {"x": torch.randn(1, 32, 16)}) == mixer.flops(32)


def test_linear_as_the_mixer_states() -> None:
    mixer = MultiHeadAttention(SPEC, kernel="linear")
    counted = count_flops(mixer, {"x": torch.randn(1, 32, 16)})
    # The sum over the keys of their features is a product with ones, two operations where the formula has one.
    assert counted - mixer.flops(32) == 4 * 4 * 32


def test_backward_of_matrix_products_is_twice_forward() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    x = torch.randn(2, 8, requires_grad=True)
    assert count_flops(model, {"input": x}) == 2 * 2 * 2 * 8 * 8
    assert count_flops(model, {"input": x}, backward=True) == 3 * 2 * 2 * 2 * 8 * 8


def test_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    count_flops(model, {"input": torch.randn(1, 4)}, backward=True)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kernel", ["sparse", "top_k", "yoso", {"name": "sparse", "pattern": "fixed"}])
def test_operators_of_our_own_are_counted(kernel: object) -> None:
    """Without them only the linear layers would be counted."""
    mixer = MultiHeadAttention(MixerSpec(dim=16, num_heads=2, max_length=128), kernel=kernel)
    x = torch.randn(1, 128, 16, requires_grad=True)
    linear = 2 * 128 * 4 * 16 * 16
    counted, stated = count_flops(mixer, {"x": x}), mixer.flops(128)
    assert linear < stated <= counted < 2.5 * stated  # Blocks of a pattern are computed whole.
    assert count_flops(mixer, {"x": x}, backward=True) == 3 * counted


def test_rounds_of_the_reformer_are_counted() -> None:
    mixer = Reformer(MixerSpec(dim=16, num_heads=2, max_length=256), num_rounds=4, chunk_size=16)
    counted = [count_flops(mixer, {"x": torch.randn(1, length, 16)}) for length in (16, 256)]
    assert counted == [mixer.flops(16), mixer.flops(256)]
