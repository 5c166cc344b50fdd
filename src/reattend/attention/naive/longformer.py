"""Longformer, sample by sample, head by head and token by token."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from reattend.attention.longformer import Longformer


def forward(
    mixer: Longformer,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """What a built `Longformer` computes, (B, N, D) in float64, from its own parameters.

    Beltagy et al. 2020, section 3.1: a global token sees all tokens by the global projections, any other token sees its
    window and the global tokens by the local ones.
    """
    samples = []
    for b in range(x.shape[0]):
        real = [j for j in range(x.shape[1]) if padding_mask is None or padding_mask[b, j]]
        tokens = x[b].double()
        rows = [_token(mixer, tokens, i, real) for i in range(x.shape[1])]
        y = torch.stack(rows) @ mixer.proj.weight.double().T
        y = y if mixer.proj.bias is None else y + mixer.proj.bias.double()
        samples.append(y if real else torch.zeros_like(y))
    return torch.stack(samples)


def _token(mixer: Longformer, x: Tensor, i: int, real: list[int]) -> Tensor:
    """Output (D) of token `i` before the output projection."""
    is_global = i < mixer.num_global
    seen = [j for j in real if is_global or j < mixer.num_global or _in_window(mixer, i, j)]
    layer = mixer.qkv_global if is_global else mixer.qkv
    assert isinstance(layer, nn.Linear)
    if not seen:
        return torch.zeros_like(x[i])
    q, k, v = (t.chunk(mixer.num_heads, dim=-1) for t in _projected(layer, x))
    heads = []
    for h in range(mixer.num_heads):
        logits = k[h][seen] @ q[h][i] / math.sqrt(mixer.head_dim)
        heads.append((logits - logits.logsumexp(0)).exp() @ v[h][seen])
    return torch.cat(heads)


def _in_window(mixer: Longformer, i: int, j: int) -> bool:
    if mixer.spec.causal:
        return i - mixer.window < j <= i
    return abs(i - j) <= mixer.window // 2


def _projected(layer: nn.Linear, x: Tensor) -> list[Tensor]:
    y = x @ layer.weight.double().T
    return list((y if layer.bias is None else y + layer.bias.double()).chunk(3, dim=-1))
