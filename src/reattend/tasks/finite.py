"""Finding out where numbers first stop being finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reattend.errors import ReattendError


class NonFiniteError(ReattendError):
    """Training produced a number that is not finite."""

    def __init__(self, what: str, value: float, epoch: int, step: int, culprit: str) -> None:
        super().__init__(
            f"{what} became {value} at epoch {epoch}, optimiser step {step}; first produced by {culprit}.\n"
            "The last checkpoint before it is kept. A lower recipe.optimizer.lr or another trainer.precision may help."
        )


def first_nonfinite_module(model: nn.Module, forward: Callable[[], Any]) -> str:
    """Runs `forward` once more and names the first innermost module whose output is not finite."""
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and not all(torch.isfinite(t).all() for t in _tensors(output)):
                state = "" if _finite_parameters(module) else ", whose parameters are not finite"
                found.append(f"{name or 'the model'} ({type(module).__name__}){state}")

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "the loss itself: every module's output is finite"


def first_nonfinite_gradient(model: nn.Module) -> str:
    """Names the last parameter, in the model's order, whose gradient is not finite: where backward met it first."""
    bad = [n for n, p in model.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all()]
    return f"the gradient of {bad[-1]}" if bad else "the sum over the gradients, each of which is finite"


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for item in value for tensor in _tensors(item)]


def _finite_parameters(module: nn.Module) -> bool:
    return all(torch.isfinite(p).all() for p in module.parameters(recurse=False))
