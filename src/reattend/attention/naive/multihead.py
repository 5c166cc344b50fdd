"""Multi-head attention with four slots, sample by sample, head by head and, when causal, query by query."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor, nn

from reattend.attention.multihead import MultiHeadAttention
from reattend.attention.naive.recenter import recenter
from reattend.attention.naive.scaled_heads import filters, pool, windows
from reattend.attention.naive.tokens import Tokens


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
    samples = []
    for b in range(x.shape[0]):
        real = [[True] * t.shape[1] if m is None else m[b].tolist() for t, m in ((x, padding_mask), (source, mask))]
        y = _sample(mixer, x[b], source[b], real[0], real[1], prefix)
        samples.append(y if any(real[1]) else torch.zeros_like(y))
    y = torch.stack(samples)
    return x + y if mixer.residual else y


def _sample(
    mixer: MultiHeadAttention, x: Tensor, source: Tensor, queries: list[bool], keys: list[bool], prefix: int
) -> Tensor:
    """Output (N, D) for tokens (N, D) that attend to tokens (M, D); real ones are True."""
    projection = _twin(mixer.projection, "projections")
    projected = []
    tokens = projection.tokens(x, source, queries, keys, mixer.projection)
    biases = [0.0] * 3 if mixer.qkv.bias is None else mixer.qkv.bias.double().chunk(3)
    for t, weight, bias in zip(tokens, mixer.qkv.weight.double().chunk(3), biases, strict=True):
        projected.append((t @ weight.T + bias).chunk(mixer.num_heads, dim=-1))
    heads = []
    for h, (q, k, v) in enumerate(zip(*projected, strict=True)):
        q, k = projection.project(q, k, queries, keys, mixer.projection)
        heads.append(_head(mixer, h, q, k, v, queries, keys, prefix))
    y = torch.cat(heads, dim=-1) @ mixer.proj.weight.double().T
    return y if mixer.proj.bias is None else y + mixer.proj.bias.double()


def _head(
    mixer: MultiHeadAttention,
    h: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: list[bool],
    keys: list[bool],
    prefix: int,
) -> Tensor:
    """Output (N, d) of head `h` for q (N, d), k and v (M, d); causal, token t is the last of tokens 0 to t."""
    if not mixer.spec.causal:
        return _attend(mixer, h, q, k, v, queries, keys, prefix)
    past = [slice(0, t + 1) for t in range(q.shape[0])]
    return torch.cat([_attend(mixer, h, q[p], k[p], v[p], queries[p], keys[p], prefix)[-1:] for p in past])


def _attend(
    mixer: MultiHeadAttention,
    h: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: list[bool],
    keys: list[bool],
    prefix: int,
) -> Tensor:
    """Output of queries for the real ones of the keys."""
    scale, pooling = mixer.scaled_heads.scales[h], mixer.scaled_heads.pooling
    k, v = (
        pool(x, keys, scale, prefix, pooling, w) for x, w in zip((k, v), filters(mixer.scaled_heads, h), strict=True)
    )
    if len(k) == 0:
        return torch.zeros_like(q)
    if mixer.recenter is not None:
        beta = torch.as_tensor(mixer.recenter.beta, dtype=torch.float64).expand(mixer.num_heads)[h]
        unit_roundoff = torch.finfo(mixer.qkv.weight.dtype).eps / 2
        q, k = recenter(q, k, beta, mixer.recenter.std, unit_roundoff)
    output: Tensor = _twin(mixer.kernel, "kernels").attend(
        q, k, v, mixer.kernel, Tokens(h, queries, windows(keys, scale, prefix))
    )
    return output


def _twin(part: nn.Module, package: str) -> ModuleType:
    name = type(part).__module__.rpartition(".")[2]
    return importlib.import_module(f"reattend.attention.naive.{package}.{name}")
