"""Reversible layers: their inputs are computed from their outputs, so none has to be kept for the backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn


class TwoBranches(Protocol):
    """A layer with a mixer's branch and a feed-forward branch."""

    dropout: nn.Module

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor: ...

    def feed_forward(self, x: Tensor) -> Tensor: ...


def reversible(x: Tensor, layers: Iterable[nn.Module], padding_mask: Tensor | None) -> Tensor:
    """(x_1 + x_2) / 2 after layers y_1 = x_1 + F(x_2), y_2 = x_2 + G(y_1), with x_1 = x_2 = `x` before them.

    (Reformer, Kitaev et al., ICLR 2020, section 3; RevNet, Gomez et al. 2017.) Gradients are those of the plain
    computation, to rounding: x_2 = y_2 - G(y_1) and x_1 = y_1 - F(x_2) are computed anew, with the same dropout.
    """
    modules = list(layers)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    first, second = _Reversible.apply(x, modules, padding_mask, *parameters)
    return cast(Tensor, (first + second) / 2)


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layers: list[TwoBranches], padding_mask: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.layers, ctx.padding_mask, ctx.parameters = layers, padding_mask, parameters
        ctx.autocast = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)
        ctx.random = []
        first, second = x, x
        for layer in layers:
            ctx.random.append(_random_state(x))
            first = first + layer.mix(second, padding_mask)
            second = second + layer.dropout(layer.feed_forward(first))
        ctx.save_for_backward(first, second)
        return first, second

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        d_first, d_second = gradients
        gradient_of = {id(parameter): torch.zeros_like(parameter) for parameter in ctx.parameters}
        after = _random_state(first)
        device, (enabled, dtype) = first.device.type, ctx.autocast
        with torch.enable_grad(), torch.autocast(device, dtype=dtype, enabled=enabled):
            for layer, state in zip(reversed(ctx.layers), reversed(ctx.random), strict=True):
                # In the order of the forward pass, so that dropout draws the same: F needs x_2, which needs G.
                _set_random_state(first, state)
                with torch.no_grad():
                    layer.mix(first, ctx.padding_mask)  # draws what F drew
                y_1 = first.detach().requires_grad_()
                of_feed_forward = layer.dropout(layer.feed_forward(y_1))
                d_y_1 = _pull(layer, of_feed_forward, y_1, d_second, gradient_of) + d_first
                x_2 = (second - of_feed_forward).detach().requires_grad_()
                _set_random_state(first, state)
                of_mixer = layer.mix(x_2, ctx.padding_mask)
                d_second = _pull(layer, of_mixer, x_2, d_y_1, gradient_of) + d_second
                first, second, d_first = (first - of_mixer).detach(), x_2.detach(), d_y_1
        _set_random_state(first, after)
        return (d_first + d_second, None, None, *(gradient_of[id(parameter)] for parameter in ctx.parameters))


def _pull(layer: TwoBranches, output: Tensor, x: Tensor, gradient: Tensor, gradient_of: dict[int, Tensor]) -> Tensor:
    """Gradient of `x` through `output`; those of the layer's parameters are added up."""
    parameters = [p for p in cast(nn.Module, layer).parameters() if p.requires_grad]
    d_x, *found = torch.autograd.grad(output, [x, *parameters], gradient, allow_unused=True)
    for parameter, d_parameter in zip(parameters, found, strict=True):
        if d_parameter is not None:
            gradient_of[id(parameter)] += d_parameter
    return d_x


def _random_state(x: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()


def _set_random_state(x: Tensor, state: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.set_rng_state(state, x.device)
    else:
        torch.set_rng_state(state)
