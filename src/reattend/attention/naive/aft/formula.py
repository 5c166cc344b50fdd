"""AFT's definition, which its variants fill with biases of their own."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from reattend.attention.aft.mixer import AFTMixer

Bias = Callable[[int, int], Tensor]
"""w_tt' (or -inf) from t and t': one number, or one for each channel of the key."""


def outputs(mixer: AFTMixer, x: Tensor, padding_mask: Tensor | None, bias: Bias) -> Tensor:
    """gate(Q_t) * sum_t' exp(K_t' + w_tt') * V_t' / sum_t' exp(K_t' + w_tt') (arXiv 2105.14103, Eqn 2).

    (B, N, D) in float64; t' is real, and at most t when causal. A token that sees none has a sum of zero, and a sample
    without a real token is zero.
    """
    samples = []
    for b, tokens in enumerate(x.double()):
        real = [j for j in range(len(tokens)) if padding_mask is None or padding_mask[b, j]]
        query, key, value = linear(mixer.qkv, tokens).split(mixer.qkv_dims, dim=1)
        rows = []
        for t in range(len(tokens)):
            seen = [j for j in real if j <= t or not mixer.spec.causal]
            seen = [j for j in seen if (bias(t, j) > -math.inf).all()]
            logits = [key[j] + bias(t, j) for j in seen]
            rows.append(_average(mixer, torch.stack(logits), value[seen]) if seen else torch.zeros_like(value[t]))
        y = torch.stack(rows)
        if mixer.query_activation != "none":
            y = _GATES[mixer.query_activation](query) * y
        y = linear(mixer.proj, y) if isinstance(mixer.proj, nn.Linear) else y
        samples.append(y if real else torch.zeros_like(y))
    return torch.stack(samples)


def _average(mixer: AFTMixer, logits: Tensor, value: Tensor) -> Tensor:
    log_sum = logits.logsumexp(0)
    shared_by = value.shape[1] // logits.shape[1]
    weights = (logits - log_sum).exp()
    if not mixer.normalised:
        weights = weights * log_sum.clamp(max=30).exp()
    return (weights.repeat_interleave(shared_by, dim=1) * value).sum(0)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer in float64."""
    y = x @ layer.weight.double().T
    return y if layer.bias is None else y + layer.bias.double()


_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": lambda q: 1 / (1 + (-q).exp()),
    "tanh": lambda q: (q.exp() - (-q).exp()) / (q.exp() + (-q).exp()),
    "relu": lambda q: q.clamp(min=0),
    "softplus": lambda q: torch.logaddexp(q, torch.zeros_like(q)),
    "identity": lambda q: q,
}
