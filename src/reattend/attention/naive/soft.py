"""SOFT, head by head, with the kernel written out pair by pair."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.soft import Soft


def forward(
    mixer: Soft,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Output (B, N, D) for x (B, N, D); the equations are in the docstring of `Soft`."""
    x = x.double()
    samples = []
    for b in range(x.shape[0]):
        real = list(range(x.shape[1])) if padding_mask is None else padding_mask[b].nonzero().flatten().tolist()
        q, v = (_linear(layer, x[b]).chunk(mixer.spec.num_heads, -1) for layer in (mixer.qk, mixer.v))
        heads = [_head(mixer, q[h], v[h], real) if real else 0.0 * q[h] for h in range(mixer.spec.num_heads)]
        y = _linear(mixer.proj, torch.cat(heads, -1))
        samples.append(y if real else 0.0 * y)
    return torch.stack(samples)


def _linear(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    y = x @ layer.weight.double().T
    return y if layer.bias is None else y + layer.bias.double()


def _head(mixer: Soft, q: Tensor, v: Tensor, real: list[int]) -> Tensor:
    """Output (N, d) of one head for tokens (N, d), from the real ones."""
    if mixer.num_landmarks is None:
        return _kernel(q, q[real]) @ v[real]
    runs: list[list[int]] = [[] for _ in range(min(mixer.num_landmarks, len(real)))]
    for number, token in enumerate(real):
        runs[number * len(runs) // len(real)].append(token)
    landmarks = torch.stack([q[run].mean(0) for run in runs])
    among = _kernel(landmarks, landmarks)
    inverse = among / max(row.sum() for row in among) ** 2
    for _ in range(mixer.num_iterations):
        inverse = inverse @ (2 * torch.eye(len(runs), dtype=q.dtype) - among @ inverse)
    output: Tensor = _kernel(q, landmarks) @ inverse @ _kernel(landmarks, q[real]) @ v[real]
    return output


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x_i - y_j|^2 / (2 sqrt(D)))."""
    rows = [[((a - b) ** 2).sum() for b in y] for a in x]
    distances = torch.stack([torch.stack(row) for row in rows])
    return (-distances / (2 * math.sqrt(x.shape[1]))).exp()
