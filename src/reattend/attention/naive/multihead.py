"""Multi-head attention with four slots, sample by sample, head by head and, when causal, query by query."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor, nn

from reattend.attention.multihead import MultiHeadAttention
from reattend.attention.naive.recenter import recenter
from reattend.attention.naive.scaled_heads import pool


def forward(
    mixer: MultiHeadAttention,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """What a built `MultiHeadAttention` computes without dropout, in float64, from its own parameters.

    The equations of the slots are in the modules of the same names; a query that sees no real key gets zero.

    Args:
        mixer: the module.
        x: (B, N, D).
        padding_mask: (B, N), True at real tokens.
        context: (B, M, D) that keys and values come from; None for `x`.
        context_mask: (B, M), True at real tokens of `context`.

    Returns:
        (B, N, D) in float64, differentiable in the inputs and the parameters of `mixer`.
    """
    x = x.double()
    source, mask = (x, padding_mask) if context is None else (context.double(), context_mask)
    prefix = mixer.spec.prefix_tokens if context is None else 0
    to_q, to_k, to_v = mixer.qkv.weight.double().chunk(3)
    q, k, v = x @ to_q.T, source @ to_k.T, source @ to_v.T
    if mixer.qkv.bias is not None:
        q, k, v = (y + bias for y, bias in zip((q, k, v), mixer.qkv.bias.double().chunk(3), strict=True))
    samples = []
    for b in range(x.shape[0]):
        real = [True] * source.shape[1] if mask is None else mask[b].tolist()
        of_heads = zip(*(y[b].chunk(mixer.num_heads, dim=-1) for y in (q, k, v)), strict=True)
        heads = [_head(mixer, h, q_h, k_h, v_h, real, prefix) for h, (q_h, k_h, v_h) in enumerate(of_heads)]
        y = torch.cat(heads, dim=-1) @ mixer.proj.weight.double().T
        y = y if mixer.proj.bias is None else y + mixer.proj.bias.double()
        samples.append(y if any(real) else torch.zeros_like(y))
    y = torch.stack(samples)
    return x + y if mixer.residual else y


def _head(mixer: MultiHeadAttention, h: int, q: Tensor, k: Tensor, v: Tensor, real: list[bool], prefix: int) -> Tensor:
    """Output (N, d) of head `h` for q (N, d), k and v (M, d)."""
    q, k = _twin(mixer.projection, "projections").project(q, k, mixer.projection)
    if not mixer.spec.causal:
        return _attend(mixer, h, q, k, v, real, prefix)
    past = [slice(0, t + 1) for t in range(q.shape[0])]
    return torch.cat([_attend(mixer, h, q[p][-1:], k[p], v[p], real[p], prefix) for p in past])


def _attend(
    mixer: MultiHeadAttention, h: int, q: Tensor, k: Tensor, v: Tensor, real: list[bool], prefix: int
) -> Tensor:
    """Output of queries that see all the real ones of the keys."""
    scale, pooling = mixer.scaled_heads.scales[h], mixer.scaled_heads.pooling
    k, v = pool(k, real, scale, prefix, pooling), pool(v, real, scale, prefix, pooling)
    if len(k) == 0:
        return torch.zeros_like(q)
    if mixer.recenter is not None:
        beta = torch.as_tensor(mixer.recenter.beta, dtype=torch.float64).expand(mixer.num_heads)[h]
        unit_roundoff = torch.finfo(mixer.qkv.weight.dtype).eps / 2
        q, k = recenter(q, k, beta, mixer.recenter.std, unit_roundoff)
    weights: Tensor = _twin(mixer.kernel, "kernels").weights(q, k, mixer.kernel)
    return weights @ v


def _twin(part: nn.Module, package: str) -> ModuleType:
    name = type(part).__module__.rpartition(".")[2]
    return importlib.import_module(f"reattend.attention.naive.{package}.{name}")
