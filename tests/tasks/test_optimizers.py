"""Optimisers of the recipes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch import nn

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.backbones import VisionTransformer
from reattend.config.schema import OptimizerConfig, RecipeConfig
from reattend.tasks.optimizers import cosine_rate, make_optimizer, make_schedule


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


@pytest.mark.parametrize("warmup_fraction", [0.0, 0.2, 0.999])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_the_shortest_cycles(steps: int, warmup_fraction: float) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2, 2))], lr=1e-4)
    recipe = cosine(
        schedule="one_cycle",
        warmup_fraction=warmup_fraction,
        momentum="cycled",
        optimizer=OptimizerConfig("adamw", 1e-4),
    )
    schedule = make_schedule(optimizer, recipe, steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(4e-6)
    assert all(0 < rate <= 1e-4 * (1 + 1e-9) for rate in rates)


def cosine(**changes: Any) -> RecipeConfig:
    optimizer = OptimizerConfig("adamw", 1e-3)
    recipe = RecipeConfig("r", "s", optimizer, "cosine", 30, 4, None, 1, 0.0, 0.0, warmup_epochs=5, warmup_lr=1e-6)
    return dataclasses.replace(recipe, **{"min_lr": 1e-5} | changes)


@pytest.mark.parametrize("cooldown", [0, 10])
def test_the_cosine_is_timms(cooldown: int) -> None:
    recipe = cosine(cooldown_epochs=cooldown)
    ours = torch.optim.AdamW([nn.Parameter(torch.zeros(2, 2))], lr=1e-3)
    theirs = torch.optim.AdamW([nn.Parameter(torch.zeros(2, 2))], lr=1e-3)
    length = 30 - cooldown
    timms = CosineLRScheduler(theirs, t_initial=length, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6)
    schedule = make_schedule(ours, recipe, steps=30 * 7)
    for epoch in range(30):
        timms.step(epoch)
        for _ in range(7):
            assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
            ours.step()
            schedule.step()


def test_a_late_schedule_is_that_of_the_epoch_before() -> None:
    rates = [[cosine_rate(cosine(schedule_lag=lag), epoch) for epoch in range(30)] for lag in (0, 1)]
    assert rates[1] == [rates[0][0], *rates[0][:-1]]


def test_positions_and_class_token_do_not_decay() -> None:
    model = VisionTransformer(
        MultiHeadAttention, image_size=8, patch_size=4, num_outputs=3, dim=8, depth=1, num_heads=2
    )
    decayed, spared = make_optimizer(model, OptimizerConfig("adamw", 0.1, weight_decay=0.5)).param_groups
    assert any(parameter is model.pos_embed for parameter in spared["params"])
    assert any(parameter is model.cls_token for parameter in spared["params"])
    assert any(parameter is model.head.weight for parameter in decayed["params"])


@pytest.mark.parametrize(("schedule", "first"), [("inverse_sqrt", 0), ("noam", 1)])
def test_the_inverse_square_root_is_that_of_the_transformer(schedule: str, first: int) -> None:
    """lr(n) is proportional to min(n^-1/2, n w^-3/2), where fairseq counts n from 0 and Vaswani et al. from 1."""
    recipe = dataclasses.replace(cosine(), schedule=schedule, warmup_steps=40, warmup_lr=0.0)
    parameter = nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3)
    schedule = make_schedule(optimizer, recipe, steps=200)
    for step in range(first, first + 200):
        expected = 1e-3 * 40**0.5 * min(max(step, 1e-9) ** -0.5, step * 40**-1.5)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        optimizer.step()
        schedule.step()


def test_decay_of_linear_weights_alone_leaves_tables_alone() -> None:
    model = nn.ModuleList([nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3)])
    decayed, spared = make_optimizer(model, OptimizerConfig("adamw", 0.1, 0.5, decays="linear")).param_groups
    assert [id(parameter) for parameter in decayed["params"]] == [id(model[1].weight)]
    assert len(spared["params"]) == 4
