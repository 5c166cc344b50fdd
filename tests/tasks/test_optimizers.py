"""Optimisers of the recipes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.config.schema import OptimizerConfig
from reattend.tasks.optimizers import make_optimizer


@pytest.mark.parametrize("name", ["radam", "adam", "adamw", "sgd"])
def test_every_parameter_is_trained_once_and_only_matrices_decay(name: str) -> None:
    spec = MixerSpec(dim=8, num_heads=2, max_length=4)
    model = nn.ModuleList([MultiHeadAttention(spec, recenter={"learnable": True}), nn.LayerNorm(8)])
    optimizer = make_optimizer(model, OptimizerConfig(name=name, lr=0.1, weight_decay=0.5))  # type: ignore[arg-type]
    decayed, spared = optimizer.param_groups
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    assert all(p.ndim == 2 for p in decayed["params"])
    assert decayed["weight_decay"] == 0.5
    assert spared["weight_decay"] == 0.0
    assert any(p is model[0].recenter.beta for p in spared["params"])


def test_a_step_lowers_the_loss() -> None:
    model = nn.Linear(3, 1)
    optimizer = make_optimizer(model, OptimizerConfig(name="radam", lr=0.01))
    x = torch.randn(32, 3)
    losses = []
    for _ in range(50):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
