"""Reformer's attention, token by token."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from reattend.attention.reformer import Reformer


def forward(
    mixer: Reformer,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Output (B, N, D) for x (B, N, D); the equations are in the docstring of `Reformer`."""
    x = x.double()
    samples = []
    for b in range(x.shape[0]):
        real = list(range(x.shape[1])) if padding_mask is None else padding_mask[b].nonzero().flatten().tolist()
        heads = torch.zeros_like(x[b])
        if real:
            q, v = (_linear(layer, x[b][real]).chunk(mixer.spec.num_heads, -1) for layer in (mixer.qk, mixer.v))
            outputs = [_head(mixer, h, q[h], v[h]) for h in range(mixer.spec.num_heads)]
            heads = heads.index_copy(0, torch.tensor(real), torch.cat(outputs, -1))
        y = _linear(mixer.proj, heads)
        samples.append(y if real else 0.0 * y)
    return torch.stack(samples)


def _linear(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    y = x @ layer.weight.double().T
    return y if layer.bias is None else y + layer.bias.double()


def _head(mixer: Reformer, h: int, q: Tensor, v: Tensor) -> Tensor:
    """Output (N, d) of one head for real tokens (N, d)."""
    k = torch.stack([row / row.norm() for row in q])
    seen: list[Counter[int]] = [Counter() for _ in q]
    for rotation in mixer.rotations[:, h].double():
        buckets = [_bucket(row, rotation, mixer.factors) for row in q.detach()]
        order = sorted(range(len(q)), key=lambda token: (buckets[token], token))
        chunk = {token: place // mixer.chunk_size for place, token in enumerate(order)}
        for i in range(len(q)):
            for j in range(len(q)):
                near = chunk[i] - chunk[j] in (0, 1) and (mixer.attend_across_buckets or buckets[i] == buckets[j])
                if near and j != i and (j < i or not mixer.spec.causal):
                    seen[i][j] += 1
    rows = []
    for i, times in enumerate(seen):
        tokens = sorted(times) or [i]
        counts = torch.tensor([times[j] if times and mixer.count_duplicates else 1 for j in tokens]).double()
        weights = (k[tokens] @ q[i] + counts.log()).softmax(0)
        rows.append(weights @ v[tokens])
    return torch.stack(rows)


def _bucket(q: Tensor, rotation: Tensor, factors: list[int]) -> int:
    """Mixed-radix number of argmax([q R; -q R]) for the part R of the rotation that belongs to each factor."""
    bucket, unit = 0, 1
    for part, factor in zip(rotation.split([factor // 2 for factor in factors], -1), factors, strict=True):
        rotated = (q @ part).tolist()
        bucket += unit * max(range(factor), key=(rotated + [-value for value in rotated]).__getitem__)
        unit *= factor
    return bucket
