"""Tokens one after the other, drawn from what a decoder says of the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from reattend.backbones import ARDecoder
from reattend.errors import ReattendError


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Attributes:
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: only so many of the likeliest tokens are drawn from, of equal ones any; None for all.
        top_p: only the fewest likeliest tokens, at least one, whose probabilities sum to at least this; 1 for all
            (nucleus sampling, Holtzman et al., ICLR 2020).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities (B, V) that the token is drawn with, from logits (B, V)."""
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
        # The largest is 0 before it is divided, which no temperature makes infinite.
        logits = (logits - logits.max(-1, keepdim=True).values).double() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, logits.topk(self.top_k, -1).indices, True)
            logits = logits.masked_fill(~kept, -torch.inf)
        probabilities = logits.softmax(-1)
        if self.top_p < 1:
            ordered, order = probabilities.sort(-1, descending=True)
            # A token stays if those likelier than it do not suffice.
            kept = ordered.cumsum(-1) - ordered < self.top_p
            kept[..., 0] = True
            probabilities = probabilities.masked_fill(~kept.scatter(-1, order, kept), 0.0)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities


@torch.no_grad()
def continued(
    model: ARDecoder, prompt: Tensor, length: int, sampling: Sampling, generator: torch.Generator
) -> Iterator[Tensor]:
    """`length` tokens (B,) after those of `prompt` (B, P), which may be empty, one after the other.

    A token takes one step of the decoder on its state: of constant size where the mixers are recurrences, a cache of
    keys and values for softmax attention.

    Args:
        model: in evaluation mode.
        prompt: token ids on the model's device.
        length: how many tokens are drawn.
        sampling: how.
        generator: draws them, on the model's device.

    Raises:
        ReattendError: prompt and tokens together are more than the model has positions for.
    """
    batch, given = prompt.shape
    if given + length > model.max_length:
        left = model.max_length - given
        shorter = f"length={left} at most" if left > 0 else f"a prompt of {model.max_length - 1} at most"
        raise ReattendError(
            f"{given} tokens of the prompt and {length} more: the model has places for {model.max_length}. {shorter}."
        )
    state, previous = model.initial_state(batch), None
    for place in range(given + length):
        logits, state = model.step(previous, place, state)
        if place < given:
            previous = prompt[:, place]
            continue
        drawn = sampling.probabilities(logits.float())
        previous = torch.multinomial(drawn, 1, generator=generator)[:, 0]
        yield previous
