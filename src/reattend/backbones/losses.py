"""Losses that mixers return beside their output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from reattend.attention.contract import Losses


def mean_over_layers(losses: Iterable[Losses]) -> Losses:
    """For each name the mean, per sample, over the layers that returned it; shapes (B,)."""
    by_name: dict[str, list[Tensor]] = defaultdict(list)
    for layer in losses:
        for name, value in layer.items():
            by_name[name].append(value)
    return {name: torch.stack(values).mean(0) for name, values in by_name.items()}
