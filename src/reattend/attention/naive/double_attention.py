"""Double attention, sample by sample and, when causal, token by token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reattend.attention.double_attention import DoubleAttention


def forward(
    mixer: DoubleAttention,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Output (B, N, D) for x (B, N, D); the equations are in the docstring of `DoubleAttention`. Chen et al. 2018."""
    source, mask = (x, padding_mask) if context is None else (context, context_mask)
    samples = []
    for b in range(x.shape[0]):
        real = [j for j in range(source.shape[1]) if mask is None or mask[b, j]]
        gathered = _linear(mixer.gather, source[b].double())
        a, maps = gathered[:, : mixer.num_features], gathered[:, mixer.num_features :]
        v = _linear(mixer.distribute, x[b].double())
        rows = []
        for i in range(x.shape[1]):
            seen = [j for j in real if not mixer.spec.causal or j <= i]
            row = torch.zeros_like(a[0])
            for c in range(mixer.num_maps):
                if seen:
                    descriptor = maps[seen, c].softmax(0) @ a[seen]
                    row = row + v[i].softmax(0)[c] * descriptor
            rows.append(row)
        y = _linear(mixer.proj, torch.stack(rows))
        samples.append(y if real else torch.zeros_like(y))
    return torch.stack(samples)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    y = x @ layer.weight.double().T
    return y if layer.bias is None else y + layer.bias.double()
