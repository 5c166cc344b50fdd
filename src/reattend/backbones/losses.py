"""Losses that mixers return beside their output."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from reattend.attention.contract import SQUARED_MEAN, Losses

OverLayers = Literal["mean", "sum"]


def over_layers(losses: Iterable[Losses], reduction: OverLayers = "mean") -> Losses:
    """For each name the mean or sum, per sample, over the layers that returned it; shapes (B,).

    What is to be squared later stays apart by layer, (B, L): a mean over the L layers is then a factor 1 / sqrt(L)
    before the square. Measurements are averaged whatever the reduction.
    """
    by_name: dict[str, list[Tensor]] = defaultdict(list)
    for layer in losses:
        for name, value in layer.items():
            by_name[name].append(value)
    return {name: _reduced(name, torch.stack(values, 1), reduction) for name, values in by_name.items()}


def _reduced(name: str, values: Tensor, reduction: OverLayers) -> Tensor:
    if name.endswith(SQUARED_MEAN):
        return values if reduction == "sum" else values / math.sqrt(values.shape[1])
    return values.sum(1) if reduction == "sum" and "/" not in name else values.mean(1)
