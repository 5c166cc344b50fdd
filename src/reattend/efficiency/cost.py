"""Time and memory of layers beside each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reattend.attention import split_losses
from reattend.efficiency.memory import peak_bytes
from reattend.efficiency.timing import time_rounds


@dataclass(frozen=True)
class Cost:
    """Forward and backward of one layer.

    Attributes:
        rounds: seconds in each round; equal positions of layers measured together are the same round.
        bytes: peak memory above the inputs.
        parameters: number of parameters of the layer.
    """

    rounds: list[float]
    bytes: int
    parameters: int

    @property
    def seconds(self) -> float:
        return statistics.median(self.rounds)


def costs(
    layers: Mapping[str, nn.Module],
    batch_size: int,
    length: int,
    dim: int,
    rounds: int,
    device: torch.device | str = "cpu",
) -> dict[str, Cost]:
    """Measures `layers` side by side on sequences of `length` tokens, each (batch_size, length, dim)."""
    calls = {name: forward_backward(layer, batch_size, length, dim, device) for name, layer in layers.items()}
    seconds = time_rounds(calls, rounds)
    return {
        name: Cost(seconds[name], peak_bytes(calls[name], device), sum(p.numel() for p in layer.parameters()))
        for name, layer in layers.items()
    }


def forward_backward(
    layer: nn.Module, batch_size: int, length: int, dim: int, device: torch.device | str = "cpu"
) -> Callable[[], None]:
    """A call that runs the layer forward and backward, projections included, on the same random input each time.

    On a GPU it waits until the work is done.
    """
    device = torch.device(device)
    x = torch.randn(batch_size, length, dim, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    layer.to(device)

    def call() -> None:
        torch.autograd.backward(_total(layer(x)))
        layer.zero_grad(set_to_none=True)
        x.grad = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return call


def _total(output: Any) -> Tensor:
    y, losses = split_losses(output)
    return y.sum() + sum(loss.sum() for loss in losses.values())
