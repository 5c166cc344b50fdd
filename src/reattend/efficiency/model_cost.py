"""What a model costs, from its shapes alone: nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from reattend.efficiency.flops import count_flops, total


@dataclass(frozen=True)
class ModelCost:
    """Of one sample.

    Attributes:
        parameters: number of trained parameters.
        flops: forward pass, 2 per multiply-add.
        training_flops: forward and backward pass.
        activations: bytes that the forward pass keeps for the backward pass.
        modules: leaf modules, each some calls of Python in every step.
    """

    parameters: int
    flops: int
    training_flops: int
    activations: int
    modules: int


def model_cost(model: nn.Module, example: Callable[[], dict[str, Tensor]]) -> ModelCost:
    """Runs `model` on fake tensors, which have shapes and no content.

    Args:
        model: on any device; in training the random choices of dropout cost nothing that is counted.
        example: makes the inputs of one sample.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        flops = count_flops(model, example())
        training_flops = count_flops(model, example(), backward=True)
        activations = _kept_bytes(model, example(), mode)
    return ModelCost(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=flops,
        training_flops=training_flops,
        activations=activations,
        modules=sum(1 for module in model.modules() if not list(module.children())),
    )


def _kept_bytes(model: nn.Module, inputs: dict[str, Tensor], mode: FakeTensorMode) -> int:
    """Storage that autograd holds after the forward pass, that of parameters left out."""
    fakes = [mode.from_tensor(parameter) for parameter in model.parameters()]  # the model uses these while they live
    own = {fake.untyped_storage()._cdata for fake in fakes}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    was_training = model.training
    model.train()
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            total(model(**inputs))
    finally:
        model.train(was_training)
    return sum(storage.nbytes() for storage in kept.values())
