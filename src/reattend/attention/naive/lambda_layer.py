"""The lambda layer, sample by sample, with each query's lambda written out."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from reattend.attention.lambda_layer import LambdaLayer


def forward(
    mixer: LambdaLayer,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Output (B, N, D) for x (B, N, D); the equations are in the docstring of `LambdaLayer`. Bello 2021."""
    length, prefix = x.shape[1], mixer.spec.prefix_tokens
    real = torch.ones(x.shape[:2], dtype=torch.bool) if padding_mask is None else padding_mask
    projected = x.double() @ mixer.qkv.weight.double().T
    q, k, v = projected.split([mixer.spec.num_heads * mixer.key_dim, mixer.key_dim, mixer.head_dim], -1)
    q = _normalised(mixer, mixer.query_norm, q, real)
    if mixer.normalised == "query_value":
        v = _normalised(mixer, mixer.other_norm, v, real)
    else:
        k = _normalised(mixer, mixer.other_norm, k, real)
    samples = []
    for b in range(x.shape[0]):
        seen = [m for m in range(length) if real[b, m]]
        if not seen:
            samples.append(torch.zeros_like(x[b].double()))
            continue
        content = k[b, seen].softmax(0).T @ v[b, seen]
        rows = []
        for n in range(length):
            whole = content
            for m in seen:
                if n >= prefix and m >= prefix:
                    whole = whole + torch.outer(_embedding(mixer, length - prefix, n - prefix, m - prefix), v[b, m])
            rows.append(torch.cat([whole.T @ query for query in q[b, n].chunk(mixer.spec.num_heads)]))
        samples.append(torch.stack(rows) @ mixer.proj.weight.double().T + mixer.proj.bias.double())
    return torch.stack(samples)


def _embedding(mixer: LambdaLayer, count: int, n: int, m: int) -> Tensor:
    """e of the place of token m of the grid as seen from token n; difference 0 is in the middle of the table."""
    extents = [count]
    if mixer.spec.grid is not None:
        scale = (count / math.prod(mixer.spec.grid)) ** (1 / len(mixer.spec.grid))
        extents = [round(extent * scale) for extent in mixer.spec.grid]
    places = list(itertools.product(*map(range, extents)))
    found: Tensor = mixer.table
    for here, there in zip(places[n], places[m], strict=True):
        found = found[there - here + len(found) // 2]
    return found.double()


def _normalised(mixer: LambdaLayer, norm: nn.BatchNorm1d, x: Tensor, real: Tensor) -> Tensor:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    if mixer.training:
        mean = x[real].mean(0)
        variance = ((x[real] - mean) ** 2).mean(0)
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight.double() + norm.bias.double()
