"""Optimisers of the recipes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

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
    parameters = model.parameters() if config.decays == "all" else _parameter_groups(model)
    return optimizers[config.name](parameters, **options)


def make_schedule(optimizer: torch.optim.Optimizer, recipe: RecipeConfig, steps: int) -> LRScheduler:
    """The course of the learning rate over `steps` updates, stepped after each: the recipe's one cycle."""
    return OneCycleLR(
        optimizer,
        max_lr=recipe.optimizer.lr,
        total_steps=steps,
        pct_start=max(recipe.warmup_fraction, 2 / steps),  # torch divides by the updates of warm-up less one
        anneal_strategy="linear",
        cycle_momentum=recipe.momentum == "cycled",
    )


def _parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    exempt = {
        id(dict(module.named_parameters())[name])
        for module in model.modules()
        if isinstance(module, Mixer)
        for name in module.no_weight_decay()
    }
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for parameter in model.parameters():
        (spared if parameter.ndim <= 1 or id(parameter) in exempt else decayed).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
