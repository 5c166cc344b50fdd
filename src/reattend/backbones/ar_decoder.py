"""The decoder of the autoregressive experiments: the next token from those before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reattend.attention import MixerSpec, split_losses
from reattend.attention.contract import Losses, Mixer, State
from reattend.backbones.losses import OverLayers, over_layers
from reattend.backbones.positions import fairseq_sinusoids, sinusoids
from reattend.backbones.reversible import reversible
from reattend.config.limits import Count, Fraction
from reattend.errors import ReattendError

DecoderState = list[State]


class ARDecoder(nn.Module):
    """Decoder of token sequences: logits of x_t from x_0, ..., x_{t-1}.

    A learned start token stands in the place of x_{-1}. Embeds token x_{t-1} as E_{x_{t-1}} + p_t, runs `depth` layers
    x <- x + Dropout(Mixer(LayerNorm(x))), x <- x + Dropout(W_2 GELU(W_1 LayerNorm(x))), then LayerNorm and one linear
    layer, or the transposed embedding. With `norm="post"` a layer is x <- LayerNorm(x + Dropout(Mixer(x))),
    x <- LayerNorm(x + Dropout(W_2 GELU(W_1 x))), and no LayerNorm follows the last one (Vaswani et al. 2017).

    With `reversible` (Reformer, Kitaev et al., ICLR 2020) there are two streams, y_1 = x_1 + Dropout(Mixer(
    LayerNorm(x_2))), y_2 = x_2 + Dropout(MLP(LayerNorm(y_1))), which both start as x and whose mean goes on; the
    backward pass computes the layers' inputs from their outputs, so memory does not grow with depth.

    Args:
        mixers: makes the causal mixer of each layer; the layers may differ.
        vocabulary: number of token ids that are read.
        num_outputs: number of token ids V that are predicted.
        max_length: tokens N of a sequence.
        dim: width D.
        depth: number of layers.
        num_heads: heads of each mixer.
        ff_dim: width of the feed-forward layer; None for 4 D.
        dropout: probability; after the embedding and in both branches of a layer.
        positions: learned, sines and cosines (Vaswani et al. 2017), those in fairseq's layout, or known to the mixers
            alone.
        norm: LayerNorm before each branch, or after each sum.
        activation: of the feed-forward layers.
        scaled_embedding: draw E with standard deviation D^-1/2 and read it as sqrt(D) E (Vaswani et al. 2017, section
            3.4), so that with `tied` both its uses have the right size.
        start_token: id that begins a text, in place of the learned start token; the data says so where it gives x_{t-1}
            in the place of x_t, so that a piece of a long text is told the token before it.
        tied: whether the last layer is the embedding.
        checkpointing: compute layers again in the backward pass in place of keeping what they computed.
        reversible: two streams; see above.
        ff_chunk: tokens at once in feed-forward layers; None for all. It saves memory and changes nothing.
        layer_losses: whether losses of one name are averaged over the layers that return them, or summed.

    Raises:
        ReattendError: `reversible` with `norm="post"`.

    Attributes:
        from_data: arguments that the data says.
    """

    from_data: ClassVar[tuple[str, ...]] = ("vocabulary", "num_outputs", "max_length", "start_token")

    def __init__(
        self,
        mixers: Callable[[MixerSpec], Mixer],
        *,
        vocabulary: int,
        num_outputs: int,
        max_length: int,
        dim: int,
        depth: int,
        num_heads: int,
        ff_dim: int | None = None,
        dropout: Fraction = 0.1,
        positions: Literal["learned", "sinusoidal", "fairseq", "none"] = "learned",
        norm: Literal["pre", "post"] = "pre",
        activation: Literal["gelu", "relu"] = "gelu",
        scaled_embedding: bool = False,
        start_token: int | None = None,
        tied: bool = False,
        checkpointing: bool = False,
        reversible: bool = False,
        ff_chunk: Count | None = None,
        layer_losses: OverLayers = "mean",
    ) -> None:
        super().__init__()
        if reversible and norm == "post":
            raise ReattendError(
                "backbone.options.reversible=true has its LayerNorms inside of the branches: backbone.options.norm=pre."
            )
        self.max_length = max_length
        self.checkpointing = checkpointing
        self.reversible = reversible
        self.layer_losses: OverLayers = layer_losses
        self.start_token = start_token
        self.embedding_scale = math.sqrt(dim) if scaled_embedding else 1.0
        std = 1 / self.embedding_scale if scaled_embedding else 0.02
        self.tokens = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.tokens.weight, std=std)
        if start_token is None:
            self.start = nn.Parameter(torch.empty(dim))
            nn.init.normal_(self.start, std=0.02)
        self.positions: Tensor | None
        if positions == "learned":
            self.positions = nn.Parameter(torch.empty(max_length, dim))
            nn.init.normal_(self.positions, std=0.02)
        else:
            tables = {"sinusoidal": sinusoids, "fairseq": fairseq_sinusoids}
            self.register_buffer("positions", tables[positions](max_length, dim) if positions in tables else None)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            DecoderLayer(
                mixers(
                    MixerSpec(
                        dim=dim,
                        num_heads=num_heads,
                        max_length=max_length,
                        causal=True,
                        layer=layer,
                        num_layers=depth,
                    )
                ),
                dim,
                4 * dim if ff_dim is None else ff_dim,
                dropout,
                ff_chunk,
                norm,
                activation,
            )
            for layer in range(depth)
        )
        self.norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()
        self.head = nn.Linear(dim, num_outputs, bias=False)
        nn.init.normal_(self.head.weight, std=std)
        if tied:
            self.head.weight = self.tokens.weight

    @staticmethod
    def place(**options: Any) -> dict[str, Any]:
        """What is known of the mixers' place without the data: they are causal."""
        return {"causal": True}

    def example(self) -> dict[str, Tensor]:
        """Inputs of one sample, all token 0, to count what the model costs."""
        return {"x": torch.zeros(1, self.max_length, dtype=torch.int64)}

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Losses]:
        """Logits (B, N, V) of the tokens `x` (B, N), each from those before it, and the mixers' losses, each (B,).

        With a `start_token`, `x` are the tokens before those that the logits are of.

        Raises:
            ValueError: for more tokens than `max_length`.
        """
        if x.shape[1] > self.max_length:
            raise ValueError(f"sequences have {x.shape[1]} tokens, the decoder has positions for {self.max_length}")
        if self.start_token is not None:
            before = self._embedded(x)
        else:
            start = self.start.expand(len(x), 1, -1).to(self.tokens.weight.dtype)
            before = torch.cat([start, self._embedded(x[:, :-1])], 1)
        if self.positions is not None:
            before = before + self.positions[: x.shape[1]]
        hidden, losses = self._through(self.dropout(before), padding_mask)
        return self.head(self.norm(hidden)), losses

    def _embedded(self, x: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(x) * self.embedding_scale
        return embedded

    def _first(self, batch_size: int) -> Tensor:
        """What stands in the place of x_{-1}, (B, D)."""
        if self.start_token is None:
            return self.start.expand(batch_size, -1)
        return self._embedded(torch.full((batch_size,), self.start_token, device=self.tokens.weight.device))

    def _through(self, x: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Losses]:
        if self.reversible:
            return reversible(x, self.layers, padding_mask), {}
        losses = []
        for layer in self.layers:
            if self.checkpointing and self.training:
                x, found = checkpoint(layer, x, padding_mask, use_reentrant=False)
            else:
                x, found = layer(x, padding_mask)
            losses.append(found)
        return x, over_layers(losses, self.layer_losses)

    def initial_state(self, batch_size: int) -> DecoderState:
        """State before the first token, for `step`: that of each layer's mixer."""
        return [layer.mixer.initial_state(batch_size) for layer in self._decoder_layers()]

    def step(self, previous: Tensor | None, place: int, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Logits (B, V) of the token at `place`, and the state after it; equal to those of `forward`.

        Args:
            previous: the token before (B,); None for the first.
            place: t, from 0.
            state: of all tokens before it.
        """
        batch_size = next(iter(state[0].values())).shape[0] if previous is None else len(previous)
        x = self._first(batch_size) if previous is None else self._embedded(previous)
        if self.positions is not None:
            x = x + self.positions[place]
        streams = (x, x)
        after: DecoderState = []
        for layer, layer_state in zip(self._decoder_layers(), state, strict=True):
            first, second = streams if self.reversible else (streams[0], streams[0])
            mixed, layer_state = layer.mixer.step(layer.into(layer.mixer_norm, second), layer_state)
            first = layer.out_of(layer.mixer_norm, first + mixed)
            second = layer.out_of(layer.ff_norm, (second if self.reversible else first) + layer.feed_forward(first))
            streams = (first, second) if self.reversible else (second, second)
            after.append(layer_state)
        hidden = (streams[0] + streams[1]) / 2
        return self.head(self.norm(hidden)), after

    def _decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]


class DecoderLayer(nn.Module):
    """Mixer and feed-forward layer, each with dropout and residual after it and a LayerNorm before or behind them."""

    def __init__(
        self,
        mixer: Mixer,
        dim: int,
        ff_dim: int,
        dropout: float,
        ff_chunk: int | None,
        norm: Literal["pre", "post"],
        activation: Literal["gelu", "relu"],
    ) -> None:
        super().__init__()
        self.post_norm = norm == "post"
        self.activation = nn.GELU() if activation == "gelu" else nn.ReLU()
        self.mixer_norm = nn.LayerNorm(dim)
        self.mixer = mixer
        self.ff_norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, ff_dim)
        self.contract = nn.Linear(ff_dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.ff_chunk = ff_chunk

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Losses]:
        """Maps `x` (B, N, D) to the same shape, and hands on the mixer's losses."""
        mixed, losses = split_losses(self.mixer(self.into(self.mixer_norm, x), padding_mask))
        x = self.out_of(self.mixer_norm, x + self.dropout(mixed))
        return self.out_of(self.ff_norm, x + self.dropout(self.feed_forward(x))), losses

    def into(self, norm: nn.Module, x: Tensor) -> Tensor:
        """What a branch reads of `x`."""
        return x if self.post_norm else norm(x)

    def out_of(self, norm: nn.Module, x: Tensor) -> Tensor:
        """What goes on of the sum `x` of a branch and what came before it."""
        return norm(x) if self.post_norm else x

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """The mixer's branch alone, with dropout.

        Raises:
            ValueError: the mixer has losses, for which the reversible form has no place.
        """
        mixed, losses = split_losses(self.mixer(self.mixer_norm(x), padding_mask))
        if losses:
            raise ValueError(f"reversible layers have no place for the losses of a mixer: {', '.join(losses)}")
        dropped: Tensor = self.dropout(mixed)
        return dropped

    def feed_forward(self, x: Tensor) -> Tensor:
        """The feed-forward branch without dropout, `ff_chunk` tokens at once."""
        if self.ff_chunk is None or x.dim() < 3:
            return self._feed_forward(x)
        return torch.cat([self._feed_forward(part) for part in x.split(self.ff_chunk, dim=1)], 1)

    def _feed_forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.contract(self.activation(self.expand(self.into(self.ff_norm, x))))
        return y
