"""Softmax attention against timm's own, with its weights loaded by name."""

from __future__ import annotations

import pytest
import torch

from reattend.attention import MixerSpec, MultiHeadAttention


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_weights_of_timm_load_by_name_and_give_its_outputs_and_gradients(fused: bool) -> None:
    timm_attention = pytest.importorskip("timm.layers.attention").Attention
    torch.manual_seed(0)
    theirs = timm_attention(48, num_heads=4, qkv_bias=True).double()
    ours = MultiHeadAttention(MixerSpec(48, 4, 17), kernel={"name": "softmax", "fused": fused}).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 17, 48, dtype=torch.float64)
    outputs, gradients = [], []
    for layer in (ours, theirs):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        y.square().sum().backward()
        outputs.append(y)
        gradients.append(leaf.grad)
    assert torch.allclose(*outputs, rtol=0, atol=1e-12)
    assert torch.allclose(*gradients, rtol=0, atol=1e-11)
