"""Building and comparing mixers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.naive import multihead as naive


def _build(
    options: dict[str, Any],
    *,
    dim: int = 8,
    num_heads: int = 2,
    length: int = 9,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **spec: Any,
) -> MultiHeadAttention:
    torch.manual_seed(seed)
    mixer = MultiHeadAttention(MixerSpec(dim, num_heads, length, **spec), **options).to(dtype)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return mixer


def _largest_error(got: Tensor, wanted: Tensor, floor: float = 0.0) -> float:
    """Largest difference, relative to the largest wanted value (or `floor`, if that is larger)."""
    if not wanted.numel():
        return 0.0
    scale = max(wanted.abs().max().item(), floor)
    difference = (got.double() - wanted.double()).abs().max().item()
    return difference / scale if scale else difference


def _errors_to_twin(mixer: MultiHeadAttention, x: Tensor, *inputs: Tensor | None) -> tuple[float, float]:
    """Largest errors of the output and of all gradients, in the inputs and in every parameter."""
    leaves = [t for t in (x, *inputs) if t is not None and t.is_floating_point()]
    leaves = [t.requires_grad_() for t in leaves] + list(mixer.parameters())
    y, twin = mixer(x, *inputs), naive.forward(mixer, x, *inputs)
    twin = twin + 0.0 * sum(leaf.sum() for leaf in leaves)  # Without a real key it depends on none of them.
    cotangent = torch.randn_like(twin)
    got = torch.autograd.grad((y * cotangent).sum(), leaves)
    wanted = torch.autograd.grad((twin * cotangent).sum(), leaves)
    # A gradient can be zero on paper, as that of the key's bias: it is measured against the others.
    floor = 0.01 * max(w.abs().max().item() for w in wanted if w.numel())
    return _largest_error(y, twin), max(_largest_error(g, w, floor) for g, w in zip(got, wanted, strict=True))


@pytest.fixture(scope="session")
def build() -> Callable[..., MultiHeadAttention]:
    """A mixer with all parameters away from their initial values."""
    return _build


@pytest.fixture(scope="session")
def largest_error() -> Callable[..., float]:
    return _largest_error


@pytest.fixture(scope="session")
def errors_to_twin() -> Callable[..., tuple[float, float]]:
    return _errors_to_twin
