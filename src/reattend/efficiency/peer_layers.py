"""Layers of public packages, each called with tokens alone as a layer of ours is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reattend.attention import MixerSpec
from reattend.errors import ReattendError


class CausalLinear(nn.Module):
    """The causal linear layer of fast-transformers, which wants its masks as objects at each call."""

    def __init__(self, package: Any, spec: MixerSpec) -> None:
        super().__init__()
        masks = importlib.import_module(f"{package.__name__}.masking")
        attention = importlib.import_module(f"{package.__name__}.attention")
        self.layer = attention.AttentionLayer(attention.CausalLinearAttention(spec.dim), spec.dim, spec.num_heads)
        self.causal = masks.TriangularCausalMask(spec.max_length)
        self.all = masks.LengthMask

    def forward(self, x: Tensor) -> Tensor:
        lengths = self.all(torch.full((x.shape[0],), x.shape[1], device=x.device))
        y: Tensor = self.layer(x, x, x, self.causal, lengths, lengths)
        return y


class LambdaOnGrid(nn.Module):
    """The layer of lambda-networks, which wants an image, followed by the output projection that ours has."""

    def __init__(self, package: Any, spec: MixerSpec) -> None:
        super().__init__()
        self.grid = spec.grid or ()
        if len(self.grid) != 2 or self.grid[0] != self.grid[1]:
            raise ReattendError(f"lambda-networks works on square grids alone, not on {'x'.join(map(str, self.grid))}")
        self.layer = package.LambdaLayer(spec.dim, dim_k=16, n=self.grid[0], heads=spec.num_heads)
        self.proj = nn.Linear(spec.dim, spec.dim)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.proj(self.layer(x.mT.unflatten(2, self.grid)).flatten(2).mT)
        return y


def performer(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.SelfAttention(spec.dim, spec.causal, spec.num_heads, _head_dim(spec))
    return layer


def linformer(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.LinformerSelfAttention(spec.dim, spec.max_length, k=256, heads=spec.num_heads)
    return layer


def linear_attention_transformer(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.SelfAttention(spec.dim, spec.num_heads, spec.causal)
    return layer


def reformer(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.LSHSelfAttention(
        spec.dim, spec.num_heads, bucket_size=64, n_hashes=8, causal=spec.causal
    )
    return layer


def nystrom(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.NystromAttention(spec.dim, _head_dim(spec), spec.num_heads, num_landmarks=64)
    return layer


def local(window: int) -> Callable[[Any, MixerSpec], nn.Module]:
    def build(package: Any, spec: MixerSpec) -> nn.Module:
        shape = {"dim": spec.dim, "dim_head": _head_dim(spec), "heads": spec.num_heads}
        layer: nn.Module = package.LocalMHA(**shape, window_size=window, causal=spec.causal, use_rotary_pos_emb=False)
        return layer

    return build


def top_k(package: Any, spec: MixerSpec) -> nn.Module:
    options = {"heads": spec.num_heads, "causal": spec.causal, "sparse_topk": 64}
    layer: nn.Module = package.Attention(spec.dim, _head_dim(spec), **options)
    return layer


def aft_full(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.AFTFull(spec.max_length, spec.dim, hidden_dim=spec.dim)
    return layer


def aft_local(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.AFTLocal(spec.max_length, spec.dim, hidden_dim=spec.dim, s=32)
    return layer


def aft_simple(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.AFTSimple(spec.max_length, spec.dim, hidden_dim=spec.dim)
    return layer


def _head_dim(spec: MixerSpec) -> int:
    return spec.dim // spec.num_heads
