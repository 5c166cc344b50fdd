"""Counted floating-point operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from reattend.efficiency.operator_flops import formulas


def count_flops(model: nn.Module, inputs: Mapping[str, Any], backward: bool = False) -> int:
    """Operations of `model(**inputs)`, 2 per multiply-add: matrix products and convolutions, not element-wise work.

    Fused attention is counted as its two matrix products (on a CPU torch's counter would see none), and its backward
    as twice that, without what a fused kernel computes again.
    """
    was_training = model.training
    model.eval()
    counter = OperationCounter()
    try:
        # The plain backend: fused kernels count recomputed work on a GPU.
        with sdpa_kernel(SDPBackend.MATH), counter, torch.set_grad_enabled(backward):
            outputs = model(**inputs)
            if backward:
                total(outputs).backward()
    finally:
        model.train(was_training)
        model.zero_grad(set_to_none=True)
    return counter.total


class OperationCounter(TorchDispatchMode):
    """Counts as `count_flops` does whatever is computed meanwhile on a CPU, in `total`.

    It takes torch's formulas. Torch's own `FlopCounterMode` counts by module too, which takes half as long again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._formulas = {**flop_registry, **{name: shape_wrapper(formula) for name, formula in formulas().items()}}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=result))
        return result


def total(value: Any) -> Tensor:
    """The sum of all tensors that a model returns."""
    if isinstance(value, Tensor):
        return value.sum()
    parts = value.values() if isinstance(value, Mapping) else value
    return sum((total(part) for part in parts), torch.zeros(()))
