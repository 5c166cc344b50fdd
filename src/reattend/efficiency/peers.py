"""Layers of public packages that do the same as attentions of ours, built at the same shape."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reattend.attention import MixerSpec
from reattend.errors import ReattendError


@dataclass(frozen=True)
class Peer:
    """A layer of a package, and the attention of ours that it is compared with.

    Attributes:
        package: the name that pip knows.
        module: what is imported.
        attention: name of ours.
        build: their layer, projections included, from the imported module and the place.
        options: both sides' options in words.
        overrides: what gives ours the options of theirs.
        causal: the forms that it has.
        caveat: what theirs does not do, by form, as seen by running it.
    """

    package: str
    module: str
    attention: str
    build: Callable[[Any, MixerSpec], nn.Module]
    options: str
    overrides: tuple[str, ...] = ()
    causal: tuple[bool, ...] = (False, True)
    caveat: str = ""

    @property
    def label(self) -> str:
        """Package and options."""
        return f"{self.package}, {self.options}"

    def missing(self) -> str:
        """Why it cannot be imported and what to do, or "" if it can."""
        if importlib.util.find_spec(self.module.partition(".")[0]) is None:
            return f"{self.package} is not installed; it serves this comparison only: pip install {self.package}"
        try:
            importlib.import_module(self.module)
        except Exception as error:  # whatever their modules run into when they are imported
            return f"{self.package} is installed but cannot be imported: {type(error).__name__}: {error}"
        return ""

    def layer(self, spec: MixerSpec) -> nn.Module:
        """Theirs for `spec`, always with the same initial values.

        Raises:
            ReattendError: it cannot be imported, or has no form such as `spec` asks for.
        """
        reason = self.missing()
        if not reason and spec.causal not in self.causal:
            reason = f"{self.package} has no {'causal' if spec.causal else 'bidirectional'} form"
        if reason:
            raise ReattendError(reason)
        torch.manual_seed(0)
        with contextlib.redirect_stdout(sys.stderr):
            return self.build(importlib.import_module(self.module), spec)


class _CausalLinear(nn.Module):
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


def _performer(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.SelfAttention(spec.dim, spec.causal, spec.num_heads, _head_dim(spec))
    return layer


def _linformer(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.LinformerSelfAttention(spec.dim, spec.max_length, k=256, heads=spec.num_heads)
    return layer


def _linear_attention_transformer(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.SelfAttention(spec.dim, spec.num_heads, spec.causal)
    return layer


def _reformer(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.LSHSelfAttention(
        spec.dim, spec.num_heads, bucket_size=64, n_hashes=8, causal=spec.causal
    )
    return layer


def _nystrom(package: Any, spec: MixerSpec) -> nn.Module:
    layer: nn.Module = package.NystromAttention(spec.dim, _head_dim(spec), spec.num_heads, num_landmarks=64)
    return layer


def _local(window: int) -> Callable[[Any, MixerSpec], nn.Module]:
    def build(package: Any, spec: MixerSpec) -> nn.Module:
        shape = {"dim": spec.dim, "dim_head": _head_dim(spec), "heads": spec.num_heads}
        layer: nn.Module = package.LocalMHA(**shape, window_size=window, causal=spec.causal, use_rotary_pos_emb=False)
        return layer

    return build


def _top_k(package: Any, spec: MixerSpec) -> nn.Module:
    options = {"heads": spec.num_heads, "causal": spec.causal, "sparse_topk": 64}
    layer: nn.Module = package.Attention(spec.dim, _head_dim(spec), **options)
    return layer


def _head_dim(spec: MixerSpec) -> int:
    return spec.dim // spec.num_heads


PEERS = (
    Peer(
        "performer-pytorch",
        "performer_pytorch",
        "performer",
        build=_performer,
        options="floor(d ln d) features",
        caveat="its causal form sees later tokens",
    ),
    Peer(
        "linformer",
        "linformer",
        "linformer",
        build=_linformer,
        options="256 rows, heads share",
        overrides=("attention.options.num_rows=256", "attention.options.sharing=headwise"),
        causal=(False,),
    ),
    Peer(
        "linear-attention-transformer",
        "linear_attention_transformer.linear_attention_transformer",
        "efficient",
        build=_linear_attention_transformer,
        options="softmax features",
        overrides=("attention.options.kernel.causal_normaliser=kernel",),
    ),
    Peer(
        "pytorch-fast-transformers",
        "fast_transformers",
        "linear",
        build=_CausalLinear,
        options="elu+1, C++ kernel",
        causal=(True,),
    ),
    Peer(
        "linear-attention-transformer",
        "linear_attention_transformer.linear_attention_transformer",
        "linear",
        build=_linear_attention_transformer,
        options="softmax features, ours elu+1",
    ),
    Peer(
        "reformer-pytorch",
        "reformer_pytorch",
        "reformer",
        build=_reformer,
        options="8 rounds, chunks of 64",
        overrides=("attention.options.num_rounds=8", "attention.options.chunk_size=64"),
        caveat="its causal form sees later tokens through the sort",
    ),
    Peer(
        "nystrom-attention",
        "nystrom_attention",
        "nystromformer",
        build=_nystrom,
        options="64 landmarks, filters of 33",
        overrides=("attention.options.kernel.num_landmarks=64", "attention.options.kernel.conv_kernel_size=33"),
        causal=(False,),
    ),
    Peer(
        "local-attention",
        "local_attention",
        "longformer",
        build=_local(256),
        options="the last 256 tokens",
        overrides=("window.value=256",),
        causal=(True,),
    ),
    Peer(
        "local-attention",
        "local_attention",
        "longformer",
        build=_local(128),
        options="128 tokens to each side, no global ones",
        overrides=("window.value=256", "attention.options.num_global=0"),
        causal=(False,),
    ),
    Peer(
        "local-attention",
        "local_attention",
        "longformer",
        build=_local(256),
        options="256 tokens to each side, ours 128 and a global token",
        overrides=("window.value=256",),
        causal=(False,),
    ),
    Peer(
        "x-transformers",
        "x_transformers.x_transformers",
        "top_k",
        build=_top_k,
        options="64 keys",
        overrides=("attention.options.kernel.k=64",),
    ),
)
