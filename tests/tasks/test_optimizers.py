"""Optimisers of the recipes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.config.schema import OptimizerConfig, RecipeConfig
from reattend.tasks.optimizers import make_optimizer, make_schedule


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


def test_weight_decay_on_all_parameters_is_torchs_own() -> None:
    model = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
    (group,) = make_optimizer(model, OptimizerConfig("adamw", 0.1, weight_decay=0.5, decays="all")).param_groups
    assert group["params"] == list(model.parameters())
    assert group["weight_decay"] == 0.5


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


@pytest.mark.parametrize("momentum", ["cycled", "fixed"])
@pytest.mark.parametrize("warmup_fraction", [0.2, 0.005, 0.2666667, 0.0])
def test_one_cycle_rises_to_the_rate_and_falls_to_nearly_nothing(warmup_fraction: float, momentum: Any) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.AdamW([parameter], lr=1e-4, betas=(0.9, 0.999))
    recipe = RecipeConfig(
        name="r",
        source="s",
        optimizer=OptimizerConfig("adamw", 1e-4),
        schedule="one_cycle",
        epochs=10,
        batch_size=4,
        clip_norm=None,
        eval_every_epochs=1,
        dropout=0.0,
        attention_dropout=0.0,
        steps_per_epoch=60,
        warmup_fraction=warmup_fraction,
        momentum=momentum,
    )
    steps = recipe.steps(train_samples=7)
    assert steps == 600
    schedule = make_schedule(optimizer, recipe, steps)
    peak = max(2.0, warmup_fraction * steps) - 1
    for step in range(steps):
        group = optimizer.param_groups[0]
        rising = min(1.0, step / peak)
        falling = max(0.0, (step - peak) / (steps - 1 - peak))
        rate = 4e-6 + rising * (1e-4 - 4e-6) if step <= peak else 1e-4 + falling * (4e-10 - 1e-4)
        assert group["lr"] == pytest.approx(rate, rel=1e-6, abs=1e-12)
        first = 0.95 - 0.1 * rising if step <= peak else 0.85 + 0.1 * falling
        assert group["betas"][0] == pytest.approx(first if momentum == "cycled" else 0.9)
        optimizer.step()
        if step + 1 < steps:
            schedule.step()
