"""AFT-conv, token by token."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from reattend.attention.aft.conv import AFTConv


def forward(
    mixer: AFTConv,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """sigmoid(Q_t) sum_t' exp(K_t' + w_tt') V_t' / sum_t' exp(K_t' + w_tt') (arXiv 2105.14103, Eqns 2, 6 and 8).

    In float64 from the mixer's own parameters, one-hot positions as in evaluation. `signed`: the weights are
    exp(K_t') (1 + w_tt'), those of the normaliser without their sign. A sample without a real token gets zero.

    Args:
        mixer: the module.
        x: (B, N, D).
        padding_mask: (B, N), True at real tokens.
        context: None.
        context_mask: None.

    Returns:
        (B, N, D) in float64.
    """
    dim, length = mixer.spec.dim, x.shape[1]
    qkv_bias = 0.0 if mixer.qkv.bias is None else mixer.qkv.bias.double()
    filters = [_filter(mixer, head) for head in range(mixer.weight.shape[0])]
    width = dim // len(filters)
    places = _places(mixer, length)
    samples = []
    for b, tokens in enumerate(x.double()):
        real = [t for t in range(length) if padding_mask is None or padding_mask[b, t]]
        if not real:
            samples.append(torch.zeros_like(tokens))
            continue
        q, k, v = (tokens @ mixer.qkv.weight.double().T + qkv_bias).split(mixer.qkv_dims, 1)
        rows = []
        for t in range(length):
            averages = []
            for head, taps in enumerate(filters):
                logits, signs, values = [], [], []
                for s in real:
                    if mixer.spec.causal and s > t:
                        continue
                    bias, sign = _bias(mixer, taps, places[t], places[s])
                    logits.append(k[s, head] + bias)
                    signs.append(sign)
                    values.append(v[s, head * width : (head + 1) * width])
                averages.append(_average(mixer, logits, signs, values, width))
            rows.append(torch.cat(averages))
        y = torch.stack(rows)
        if mixer.query_activation != "none":
            y = _gate(mixer.query_activation, q) * y
        if isinstance(mixer.proj, torch.nn.Linear):
            y = y @ mixer.proj.weight.double().T
            y = y if mixer.proj.bias is None else y + mixer.proj.bias.double()
        samples.append(y)
    return torch.stack(samples)


def _filter(mixer: AFTConv, head: int) -> Tensor:
    w = mixer.weight[head].double()
    if mixer.positions == "one_hot":
        assert mixer.gamma is not None
        hot = torch.zeros_like(w)
        hot.view(-1)[w.argmax()] = 1.0
        return hot * mixer.gamma[head].double()
    if mixer.gamma is None or mixer.beta is None:
        return w
    std = (w - w.mean()).square().mean().sqrt()
    normal = (w - w.mean()) / std if w.max() > w.min() else 0 * w
    return mixer.gamma[head].double() * normal + mixer.beta[head].double()


def _places(mixer: AFTConv, length: int) -> list[tuple[int, ...] | None]:
    """Where on the grid each token stands; None for prefix tokens."""
    prefix = mixer.spec.prefix_tokens
    extents = [length - prefix]
    if mixer.spec.grid is not None and len(mixer.spec.grid) > 1:
        scales = range(1, length + 1)
        divisor = math.gcd(*mixer.spec.grid)
        ratio = [extent // divisor for extent in mixer.spec.grid]
        extents = next(
            [scale * extent for extent in ratio]
            for scale in scales
            if math.prod(scale * extent for extent in ratio) == length - prefix
        )
    return [None] * prefix + list(itertools.product(*map(range, extents)))


def _bias(
    mixer: AFTConv, taps: Tensor, place: tuple[int, ...] | None, other: tuple[int, ...] | None
) -> tuple[Tensor, float]:
    """w_tt', or the logarithm of the size of the weight that stands for exp(w_tt') and its sign."""
    if place is None or other is None:
        return taps.new_zeros(()), 1.0
    centre = taps.shape[0] - 1 if mixer.spec.causal else taps.shape[0] // 2
    tap = tuple(b - a + centre for a, b in zip(place, other, strict=True))
    if not all(0 <= index < taps.shape[0] for index in tap):
        return taps.new_tensor(mixer.outside), 1.0
    if not mixer.signed:
        return taps[tap], 1.0
    weight = 1 + taps[tap]
    return weight.abs().log(), 1.0 if weight > 0 else -1.0


def _average(mixer: AFTConv, logits: list[Tensor], signs: list[float], values: list[Tensor], width: int) -> Tensor:
    if not logits or all(logit == -math.inf for logit in logits):
        return torch.zeros(width, dtype=torch.float64)
    stacked = torch.stack(logits)
    log_sum = stacked.logsumexp(0)
    weights = (stacked - log_sum).exp() * torch.tensor(signs, dtype=torch.float64)
    average = weights @ torch.stack(values)
    return average if mixer.normalised else average * log_sum.clamp(max=30.0).exp()


def _gate(name: str, q: Tensor) -> Tensor:
    gates = {
        "sigmoid": lambda: 1 / (1 + (-q).exp()),
        "tanh": lambda: q.tanh(),
        "relu": lambda: q.clamp(min=0.0),
        "softplus": lambda: (1 + q.exp()).log(),
        "identity": lambda: q,
    }
    return gates[name]()
