"""Time of attention layers beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from reattend.attention import Mixer, MixerSpec, split_losses


def forward_backward(mixer: Mixer, batch_size: int, length: int, dim: int, causal: bool = False) -> Callable[[], None]:
    """A call that runs the layer forward and backward, projections included, on the same random input each time."""
    x = torch.randn(batch_size, length, dim, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def call() -> None:
        y, losses = split_losses(mixer(x))
        total = y.sum() + sum(loss.sum() for loss in losses.values())
        torch.autograd.backward(total)
        mixer.zero_grad(set_to_none=True)
        x.grad = None

    return call


def build_all(
    factories: Mapping[str, Callable[[MixerSpec], Mixer]], spec: MixerSpec, seed: int = 0
) -> dict[str, Mixer]:
    """Each factory's mixer for `spec`, initialised from the same seed."""
    built = {}
    for name, factory in factories.items():
        torch.manual_seed(seed)
        built[name] = factory(spec)
    return built
