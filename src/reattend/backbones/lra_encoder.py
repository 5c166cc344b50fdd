"""The encoder of the Long Range Arena experiments, for one sequence or for two that are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention import MixerSpec, split_losses
from reattend.attention.contract import Losses, Mixer
from reattend.backbones.losses import OverLayers, over_layers


class LRAEncoder(nn.Module):
    """Classifier of token sequences with a pre-norm transformer encoder.

    Embeds token t at place n as E_t + p_n, runs `depth` layers x <- x + Dropout(Mixer(LayerNorm(x))),
    x <- x + Dropout(W_2 Dropout(GELU(W_1 LayerNorm(x)))), then LayerNorm, zeros at padding, pooling to one vector a,
    and W_b ReLU(W_a a). Of two documents, which one encoder maps to a and b, the classifier sees
    [a, b, a * b, a - b] (mlpen/Nystromformer, LRA; NVIDIA/transformer-ls, lra).

    Args:
        mixers: makes the mixer of each layer; the layers may differ.
        vocabulary: number of token ids; 0 is padding.
        num_outputs: classes.
        max_length: tokens N that every sequence is padded to.
        num_documents: 1, or 2 that are compared.
        dim: width D.
        depth: number of layers.
        num_heads: heads of each mixer.
        ff_dim: width of the feed-forward layer and of the classifier.
        dropout: probability; after the embedding and in both branches of a layer.
        pooling: the mean over tokens, or a learned token before the first.
        mean_over: whether the mean divides by all N positions, as in the followed code, or by the real ones.
        layer_losses: whether losses of one name are averaged over the layers that return them, or summed.
    """

    def __init__(
        self,
        mixers: Callable[[MixerSpec], Mixer],
        *,
        vocabulary: int,
        num_outputs: int,
        max_length: int,
        num_documents: int = 1,
        dim: int,
        depth: int,
        num_heads: int,
        ff_dim: int,
        dropout: float = 0.1,
        pooling: Literal["mean", "class_token"] = "mean",
        mean_over: Literal["all", "real"] = "all",
        layer_losses: OverLayers = "mean",
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.num_documents = num_documents
        self.mean_over = mean_over
        self.layer_losses: OverLayers = layer_losses
        prefix = int(pooling == "class_token")
        self.tokens = nn.Embedding(vocabulary, dim)
        self.class_token = nn.Parameter(torch.empty(dim)) if prefix else None
        self.positions = nn.Parameter(torch.empty(prefix + max_length, dim))
        for table in (self.tokens.weight, self.positions, self.class_token):
            if table is not None:
                nn.init.normal_(table, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            PreNormLayer(
                mixers(
                    MixerSpec(
                        dim=dim,
                        num_heads=num_heads,
                        max_length=prefix + max_length,
                        prefix_tokens=prefix,
                        layer=layer,
                        num_layers=depth,
                    )
                ),
                dim,
                ff_dim,
                dropout,
            )
            for layer in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        features = dim if num_documents == 1 else 4 * dim
        self.head = nn.Sequential(nn.Linear(features, ff_dim), nn.ReLU(), nn.Linear(ff_dim, num_outputs))

    def example(self) -> dict[str, Tensor]:
        """Inputs of one sample, all padding's id, to count what the model costs."""
        documents = (self.num_documents,) if self.num_documents > 1 else ()
        return {"x": torch.zeros(1, *documents, self.max_length, dtype=torch.int64)}

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Losses]:
        """Logits (B, num_outputs) for token ids (B, N), or (B, 2, N) for pairs, and the mixers' losses, each (B,).

        A batch may be shorter than `max_length`; the mean over all positions still divides by `max_length`.
        """
        batch, length = x.shape[0], x.shape[-1]
        if length > self.max_length:
            raise ValueError(f"sequences have {length} tokens, the encoder has positions for {self.max_length}")
        mask = None if padding_mask is None else padding_mask.reshape(-1, length)
        vectors, losses = self._encode(x.reshape(-1, length), mask)
        if self.num_documents > 1:
            # One by one: documents of a pair lie side by side.
            first, second = vectors.view(batch, self.num_documents, -1).unbind(1)
            vectors = torch.cat([first, second, first * second, first - second], -1)
            losses = {
                name: value.view(batch, self.num_documents, *value.shape[1:]).mean(1) for name, value in losses.items()
            }
        return self.head(vectors), losses

    def _encode(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Losses]:
        x = self.tokens(tokens)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], 1)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        x = self.dropout(x + self.positions[: x.shape[1]])
        losses = []
        for layer in self.layers:
            x, layer_losses = layer(x, mask)
            losses.append(layer_losses)
        x = self.norm(x)
        pooled = x[:, 0] if self.class_token is not None else self._mean(x, mask)
        return pooled, over_layers(losses, self.layer_losses)

    def _mean(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return x.sum(1) / (self.max_length if self.mean_over == "all" else x.shape[1])
        weights = mask.to(x.dtype)
        total = torch.einsum("bnd,bn->bd", x, weights)
        if self.mean_over == "all":
            return total / self.max_length
        return total / weights.sum(1, keepdim=True).clamp(min=1)


class PreNormLayer(nn.Module):
    """Mixer and feed-forward layer, each behind a LayerNorm, with dropout and residual after it."""

    def __init__(self, mixer: Mixer, dim: int, ff_dim: int, dropout: float) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(dim)
        self.mixer = mixer
        self.ff_norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, ff_dim)
        self.contract = nn.Linear(ff_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Losses]:
        """Maps `x` (B, N, D) to the same shape, and hands on the mixer's losses."""
        mixed, losses = split_losses(self.mixer(self.mixer_norm(x), padding_mask))
        x = x + self.dropout(mixed)
        hidden = self.contract(self.dropout(F.gelu(self.expand(self.ff_norm(x)))))
        return x + self.dropout(hidden), losses
