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
from torch import nn

from reattend.attention import MixerSpec
from reattend.efficiency import peer_layers
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
        on_grid: tokens are on a square grid, for ours too.
        most_tokens: at more tokens theirs takes too long or too much memory to be measured; None for no limit.
    """

    package: str
    module: str
    attention: str
    build: Callable[[Any, MixerSpec], nn.Module]
    options: str
    overrides: tuple[str, ...] = ()
    causal: tuple[bool, ...] = (False, True)
    caveat: str = ""
    on_grid: bool = False
    most_tokens: int | None = None

    @property
    def label(self) -> str:
        """Package and options."""
        return f"{self.package}, {self.options}"

    def fits(self, causal: bool, length: int) -> bool:
        """Whether it has this form and can be measured at `length` tokens."""
        return causal in self.causal and (self.most_tokens is None or length <= self.most_tokens)

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
            ReattendError: it cannot be imported, or has no form or grid such as `spec` asks for.
        """
        reason = self.missing()
        if not reason and spec.causal not in self.causal:
            reason = f"{self.package} has no {'causal' if spec.causal else 'bidirectional'} form"
        if reason:
            raise ReattendError(reason)
        torch.manual_seed(0)
        with contextlib.redirect_stdout(sys.stderr):
            return self.build(importlib.import_module(self.module), spec)


PEERS = (
    Peer(
        "performer-pytorch",
        "performer_pytorch",
        "performer",
        build=peer_layers.performer,
        options="floor(d ln d) features",
        caveat="its causal form sees later tokens",
    ),
    Peer(
        "linformer",
        "linformer",
        "linformer",
        build=peer_layers.linformer,
        options="256 rows, heads share",
        overrides=("attention.options.num_rows=256", "attention.options.sharing=headwise"),
        causal=(False,),
    ),
    Peer(
        "linear-attention-transformer",
        "linear_attention_transformer.linear_attention_transformer",
        "efficient",
        build=peer_layers.linear_attention_transformer,
        options="softmax features",
        overrides=("attention.options.kernel.causal_normaliser=kernel",),
    ),
    Peer(
        "pytorch-fast-transformers",
        "fast_transformers",
        "linear",
        build=peer_layers.CausalLinear,
        options="elu+1, C++ kernel",
        causal=(True,),
    ),
    Peer(
        "linear-attention-transformer",
        "linear_attention_transformer.linear_attention_transformer",
        "linear",
        build=peer_layers.linear_attention_transformer,
        options="softmax features, ours elu+1",
    ),
    Peer(
        "reformer-pytorch",
        "reformer_pytorch",
        "reformer",
        build=peer_layers.reformer,
        options="8 rounds, chunks of 64",
        overrides=("attention.options.num_rounds=8", "attention.options.chunk_size=64"),
        caveat="its causal form sees later tokens through the sort",
    ),
    Peer(
        "nystrom-attention",
        "nystrom_attention",
        "nystromformer",
        build=peer_layers.nystrom,
        options="64 landmarks, filters of 33",
        overrides=("attention.options.kernel.num_landmarks=64", "attention.options.kernel.conv_kernel_size=33"),
        causal=(False,),
    ),
    Peer(
        "local-attention",
        "local_attention",
        "longformer",
        build=peer_layers.local(256),
        options="the last 256 tokens",
        overrides=("window.value=256",),
        causal=(True,),
    ),
    Peer(
        "local-attention",
        "local_attention",
        "longformer",
        build=peer_layers.local(128),
        options="128 tokens to each side, no global ones",
        overrides=("window.value=256", "attention.options.num_global=0"),
        causal=(False,),
    ),
    Peer(
        "local-attention",
        "local_attention",
        "longformer",
        build=peer_layers.local(256),
        options="256 tokens to each side, ours 128 and a global token",
        overrides=("window.value=256",),
        causal=(False,),
    ),
    Peer(
        "x-transformers",
        "x_transformers.x_transformers",
        "top_k",
        build=peer_layers.top_k,
        options="64 keys",
        overrides=("attention.options.kernel.k=64",),
    ),
    Peer(
        "aft-pytorch",
        "aft_pytorch",
        "aft_full",
        build=peer_layers.aft_full,
        options="free biases",
        overrides=("attention.options.bias_rank=null",),
        causal=(False,),
        caveat="keys past 88 overflow in AFTFull and AFTLocal, whose exponentials have no shift",
    ),
    Peer(
        "aft-pytorch",
        "aft_pytorch",
        "aft_local",
        build=peer_layers.aft_local,
        options="window of 32, free biases",
        overrides=("window.value=32", "attention.options.bias_rank=null"),
        causal=(False,),
        caveat="the biases of AFTLocal never train, and are copied one by one at each call, which is slow",
        most_tokens=1024,
    ),
    Peer(
        "aft-pytorch",
        "aft_pytorch",
        "aft_simple",
        build=peer_layers.aft_simple,
        options="one average",
        causal=(False,),
    ),
    Peer(
        "lambda-networks",
        "lambda_networks",
        "lambda",
        build=peer_layers.LambdaOnGrid,
        options="global context on a grid, keys of 16",
        causal=(False,),
        caveat="a vector is kept for each pair of positions, which takes memory",
        on_grid=True,
        most_tokens=1024,
    ),
)
