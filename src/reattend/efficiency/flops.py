"""Counted floating-point operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from reattend.efficiency.operator_flops import formulas


def count_flops(model: nn.Module, inputs: Mapping[str, Any], backward: bool = False) -> int:
    """Operations of `model(**inputs)`, 2 per multiply-add: matrix products and convolutions, not element-wise work.

    Fused attention is counted as its two matrix products (on a CPU torch's counter would see none), and its backward
    as twice that, without what a fused kernel computes again.
    """
    was_training = model.training
    model.eval()
    try:
        # The plain backend: fused kernels have no count on a CPU, and count recomputed work on a GPU.
        counter = FlopCounterMode(display=False, custom_mapping=dict(formulas()))
        with sdpa_kernel(SDPBackend.MATH), counter, torch.set_grad_enabled(backward):
            outputs = model(**inputs)
            if backward:
                total(outputs).backward()
    finally:
        model.train(was_training)
        model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())


def total(value: Any) -> Tensor:
    """The sum of all tensors that a model returns."""
    if isinstance(value, Tensor):
        return value.sum()
    parts = value.values() if isinstance(value, Mapping) else value
    return sum((total(part) for part in parts), torch.zeros(()))
