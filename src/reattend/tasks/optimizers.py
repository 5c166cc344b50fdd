"""Optimisers of the recipes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from reattend.attention.contract import Mixer
from reattend.config.schema import OptimizerConfig, RecipeConfig


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimiser that `config` names over all parameters of `model`.

    Weight decay is decoupled only in AdamW; in RAdam, Adam and SGD it is the L2 penalty, as in the followed code. It
    leaves vectors, scalars and what a mixer names in `no_weight_decay` alone, unless it is to be on all parameters.
    """
    optimizers: dict[str, type[torch.optim.Optimizer]] = {
        "radam": torch.optim.RAdam,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
    }
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        options["momentum"] = config.betas[0]
    else:
        options |= {"betas": tuple(config.betas), "eps": config.eps}
    parameters = model.parameters() if config.decays == "all" else _parameter_groups(model, config.decays == "linear")
    return optimizers[config.name](parameters, **options)


def make_schedule(optimizer: torch.optim.Optimizer, recipe: RecipeConfig, steps: int) -> LRScheduler:
    """The course of the learning rate over `steps` updates, stepped after each; see `RecipeConfig`.

    One or two updates are the first ones of a one cycle of three, the shortest that has a rise and a fall.
    """
    if recipe.schedule == "inverse_sqrt":
        return LambdaLR(optimizer, lambda step: inverse_sqrt_rate(recipe, step) / recipe.optimizer.lr)
    if recipe.schedule == "noam":
        return LambdaLR(optimizer, lambda step: noam_rate(recipe, step) / recipe.optimizer.lr)
    if recipe.schedule == "cosine":
        steps_per_epoch = max(1, steps // recipe.epochs)
        return LambdaLR(optimizer, lambda step: cosine_rate(recipe, step // steps_per_epoch) / recipe.optimizer.lr)
    steps = max(steps, 3)
    return OneCycleLR(
        optimizer,
        max_lr=recipe.optimizer.lr,
        total_steps=steps,
        pct_start=max(recipe.warmup_fraction, 2 / steps),  # torch divides by the updates of warm-up less one
        anneal_strategy="linear",
        cycle_momentum=recipe.momentum == "cycled",
    )


def cosine_rate(recipe: RecipeConfig, epoch: int) -> float:
    """Learning rate in `epoch`, from 0, of a cosine with warm-up and cool-down; see `RecipeConfig`."""
    lr, least = recipe.optimizer.lr, recipe.min_lr
    epoch = max(0, epoch - recipe.schedule_lag)
    if epoch < recipe.warmup_epochs:
        return recipe.warmup_lr + (lr - recipe.warmup_lr) * epoch / recipe.warmup_epochs
    # Warm-up takes the place of the cosine's first epochs and does not delay it, as timm has it.
    progress = epoch / max(1, recipe.epochs - recipe.cooldown_epochs)
    return least if progress >= 1 else least + (lr - least) * (1 + math.cos(math.pi * progress)) / 2


def inverse_sqrt_rate(recipe: RecipeConfig, step: int) -> float:
    """Learning rate at update `step`, from 0; see `RecipeConfig`."""
    lr, warmup = recipe.optimizer.lr, recipe.warmup_steps
    if step < warmup:
        return recipe.warmup_lr + (lr - recipe.warmup_lr) * step / warmup
    return lr * math.sqrt(max(1, warmup) / max(1, step))


def noam_rate(recipe: RecipeConfig, step: int) -> float:
    """Learning rate at update `step`, from 0; see `RecipeConfig`."""
    warmup, number = max(1, recipe.warmup_steps), step + 1
    return recipe.optimizer.lr * min(number / warmup, math.sqrt(warmup / number))


def _parameter_groups(model: nn.Module, only_linear: bool) -> list[dict[str, Any]]:
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    exempt = {
        id(dict(module.named_parameters())[name])
        for module in model.modules()
        if isinstance(module, Mixer) or hasattr(module, "no_weight_decay")  # models of timm state theirs in this way
        for name in {*module.no_weight_decay()} & dict(module.named_parameters()).keys()  # type: ignore[operator]
    }
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for parameter in model.parameters():
        is_spared = parameter.ndim <= 1 or id(parameter) in exempt or (only_linear and id(parameter) not in linear)
        (spared if is_spared else decayed).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
