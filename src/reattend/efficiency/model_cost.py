"""What a model costs, from its shapes alone: nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from reattend.efficiency.flops import OperationCounter, total

_META = torch.device("meta")


@dataclass(frozen=True)
class ModelCost:
    """Of one sample.

    Attributes:
        parameters: number of trained parameters.
        flops: forward pass, 2 per multiply-add.
        training_flops: forward and backward pass.
        activations: bytes that the forward pass keeps for the backward pass.
        outputs: bytes of what it returns, its own losses left out.
        modules: leaf modules, each some calls of Python in every step.
    """

    parameters: int
    flops: int
    training_flops: int
    activations: int
    outputs: int
    modules: int


def model_cost(model: nn.Module, example: Callable[[], dict[str, Tensor]], compute: bool = False) -> ModelCost:
    """Runs `model` forward and backward, as in training.

    Args:
        model: on the CPU, or without content; without `compute` its weights are gone afterwards.
        example: makes the inputs of one sample.
        compute: really computes, which takes longer and lets the model look at values. Else all tensors have shapes and
            no content.
    """
    inputs = example()
    if not compute:
        inputs = {name: tensor.to(_META) for name, tensor in inputs.items()}
        model.to(_META)
    model.train()
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    counter = OperationCounter()
    with nullcontext() if compute else _ContentlessCPU(), torch.enable_grad(), counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            returned = model(**inputs)
            loss = total(returned)
        flops = counter.total
        torch.autograd.backward(loss)  # `loss.backward()` would leave the mode
    return ModelCost(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=flops,
        training_flops=counter.total,
        activations=sum(storage.nbytes() for storage in kept.values()),
        outputs=(returned if isinstance(returned, Tensor) else returned[0]).nbytes,
        modules=sum(1 for module in model.modules() if not list(module.children())),
    )


class _ContentlessCPU(TorchFunctionMode):
    """Tensors without content say that they are on the CPU, and what is made for the CPU has no content.

    So a model takes the way that it takes there: half of torch (autocast, for one) does not know their true device, and
    would not fuse attention on it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _device_of:
            device = func(*args, **kwargs)
            return torch.device("cpu") if device == _META else device
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = _META
        return func(*args, **kwargs)


_device_of = torch.Tensor.device.__get__


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Fused where a CPU would fuse it: without dropout and with a mask that is not learned."""
    if dropout_p or enable_gqa or (attn_mask is not None and attn_mask.requires_grad):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    output: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return output
