"""Synthesizer, sample by sample, head by head and pair by pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reattend.attention.synthesizer import Synthesizer


def forward(
    mixer: Synthesizer,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Output (B, N, D) for x (B, N, D); the equations are in the docstring of `Synthesizer`. Tay et al. 2020."""
    num_heads, samples = mixer.spec.num_heads, []
    for b in range(x.shape[0]):
        tokens = x[b].double()
        real = [j for j in range(len(tokens)) if padding_mask is None or padding_mask[b, j]]
        values = _linear(mixer.v, tokens).chunk(num_heads, dim=1)
        rows = []
        for i in range(len(tokens)):
            seen = [j for j in real if not mixer.spec.causal or j <= i]
            heads = [torch.zeros_like(v[i]) for v in values]
            if seen:
                for h, v in enumerate(values):
                    logits = torch.stack([_logit(mixer, tokens[i], h, i, j) for j in seen])
                    heads[h] = (logits - logits.logsumexp(0)).exp() @ v[seen]
            rows.append(torch.cat(heads))
        y = _linear(mixer.proj, torch.stack(rows))
        samples.append(y if real else torch.zeros_like(y))
    return torch.stack(samples)


def _logit(mixer: Synthesizer, token: Tensor, head: int, i: int, j: int) -> Tensor:
    """s_ij of one head."""
    if mixer.logits == "random":
        return mixer.table[head, i, j].double()
    if mixer.logits == "factorised_random":
        return mixer.rows[head, i].double() @ mixer.columns[head, j].double()
    hidden = _linear(mixer.hidden, token).relu().chunk(mixer.spec.num_heads)[head]
    if mixer.logits == "dense":
        return mixer.columns[head, j].double() @ hidden + mixer.columns_bias[head, j].double()
    big, small = divmod(j, mixer.tile)
    a = mixer.tiles[head, big].double() @ hidden + mixer.tiles_bias[head, big].double()
    b = mixer.within[head, small].double() @ hidden + mixer.within_bias[head, small].double()
    product: Tensor = a * b
    return product


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    y = x @ layer.weight.double().T
    return y if layer.bias is None else y + layer.bias.double()
