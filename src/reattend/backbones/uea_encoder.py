"""The time-series encoder of the UEA experiments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention import MixerSpec, split_losses
from reattend.attention.contract import Losses, Mixer
from reattend.backbones.losses import OverLayers, over_layers
from reattend.backbones.norm import TokenBatchNorm, TokenLayerNorm


class UEAEncoder(nn.Module):
    """Classifier or regressor of a multivariate series with a post-norm transformer encoder.

    Embeds each step as W x_t sqrt(D) + p_t with learned p_t, runs `depth` layers
    x <- Norm(x + Dropout(Mixer(x))), x <- Norm(x + Dropout(W_2 Dropout(GELU(W_1 x)))), then GELU, dropout, zeros at
    padded steps, and one linear map of all `max_length * dim` features (gzerveas/mvts_transformer). The encoder of
    thuml/Flowformer has LayerNorm in place of BatchNorm, once more after the layers, and its mixers see padded steps;
    its feed-forward convolutions over one step are these linear maps.

    Args:
        mixers: makes the mixer of each layer; the layers may differ.
        num_channels: channels C of the series.
        num_outputs: classes, or 1 for regression.
        max_length: steps N that every series is padded to.
        dim: width D.
        depth: number of layers.
        num_heads: heads of each mixer.
        ff_dim: width of the feed-forward layer.
        dropout: probability; after the embedding, in both branches of a layer and before the classifier.
        norm: BatchNorm over batch and steps as in the followed code, or LayerNorm.
        batch_norm_over: whether BatchNorm's statistics count padded steps.
        layer_losses: whether losses of one name are averaged over the layers that return them, or summed.
        final_norm: whether a LayerNorm follows the layers.
        padding_in_mixers: whether mixers are told which steps are padding, or see them like others.
    """

    def __init__(
        self,
        mixers: Callable[[MixerSpec], Mixer],
        *,
        num_channels: int,
        num_outputs: int,
        max_length: int,
        dim: int,
        depth: int,
        num_heads: int,
        ff_dim: int,
        dropout: float = 0.1,
        norm: Literal["batch", "layer"] = "batch",
        batch_norm_over: Literal["all", "real"] = "all",
        layer_losses: OverLayers = "mean",
        final_norm: bool = False,
        padding_in_mixers: Literal["masked", "seen"] = "masked",
    ) -> None:
        super().__init__()
        self.padding_in_mixers = padding_in_mixers
        self.layer_losses: OverLayers = layer_losses
        self.max_length = max_length
        self.embedding_scale = math.sqrt(dim)
        self.embedding = nn.Linear(num_channels, dim)
        self.positions = nn.Parameter(torch.empty(max_length, dim).uniform_(-0.02, 0.02))
        self.dropout = nn.Dropout(dropout)

        def make_norm() -> nn.Module:
            return TokenBatchNorm(dim, batch_norm_over) if norm == "batch" else TokenLayerNorm(dim)

        self.layers = nn.ModuleList(
            EncoderLayer(
                mixers(MixerSpec(dim=dim, num_heads=num_heads, max_length=max_length, layer=layer, num_layers=depth)),
                make_norm(),
                make_norm(),
                dim,
                ff_dim,
                dropout,
            )
            for layer in range(depth)
        )
        self.final_norm = TokenLayerNorm(dim) if final_norm else None
        self.head = nn.Linear(max_length * dim, num_outputs)

    def example(self) -> dict[str, Tensor]:
        """Inputs of one sample, all zero, to count what the model costs."""
        return {"x": torch.zeros(1, self.max_length, self.embedding.in_features)}

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Losses]:
        """Outputs (B, num_outputs) for series (B, N, C), and the mixers' own losses, each (B,)."""
        if x.shape[1] != self.max_length:
            raise ValueError(f"series have {x.shape[1]} steps, the classifier needs {self.max_length}")
        x = self.dropout(self.embedding(x) * self.embedding_scale + self.positions)
        losses = []
        for layer in self.layers:
            x, layer_losses = layer(x, padding_mask, masked=self.padding_in_mixers == "masked")
            losses.append(layer_losses)
        if self.final_norm is not None:
            x = self.final_norm(x, padding_mask)
        x = self.dropout(F.gelu(x))
        if padding_mask is not None:
            x = x * padding_mask.unsqueeze(-1)
        return self.head(x.flatten(1)), over_layers(losses, self.layer_losses)


class EncoderLayer(nn.Module):
    """Mixer and feed-forward layer, each with dropout, residual and normalisation after it."""

    def __init__(
        self, mixer: Mixer, mixer_norm: nn.Module, ff_norm: nn.Module, dim: int, ff_dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.mixer_norm = mixer_norm
        self.expand = nn.Linear(dim, ff_dim)
        self.contract = nn.Linear(ff_dim, dim)
        self.ff_norm = ff_norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding_mask: Tensor | None, masked: bool = True) -> tuple[Tensor, Losses]:
        """Maps `x` (B, N, D) to the same shape, and hands on the mixer's losses; it has the mask if `masked`."""
        mixed, losses = split_losses(self.mixer(x, padding_mask if masked else None))
        x = self.mixer_norm(x + self.dropout(mixed), padding_mask)
        hidden = self.contract(self.dropout(F.gelu(self.expand(x))))
        return self.ff_norm(x + self.dropout(hidden), padding_mask), losses
