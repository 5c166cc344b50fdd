"""Attention of one head of one sample to a pyramid of averages."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from reattend.attention.kernels.asymmetric_nonlocal import AsymmetricNonlocalKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: AsymmetricNonlocalKernel, tokens: Tokens) -> Tensor:
    """sum_a softmax_a(q_i . k_a / sqrt(D)) v_a for q (N, D), k and v (M, D), over anchors a of averages.

    Zhu et al. 2019, section 3.2: bins of adaptive average pooling at several sizes.
    """
    at = {j: number for number, (j,) in enumerate(tokens.keys)}
    anchors = [[number for j, number in at.items() if j in members] for members in _anchors(kernel, len(q), list(at))]
    anchors = [members for members in anchors if members]
    keys = torch.stack([k[members].mean(0) for members in anchors])
    values = torch.stack([v[members].mean(0) for members in anchors])
    logits = q @ keys.T / math.sqrt(q.shape[1])
    return (logits - logits.logsumexp(1, keepdim=True)).exp() @ values


def _anchors(kernel: AsymmetricNonlocalKernel, length: int, real: list[int]) -> list[list[int]]:
    """The tokens, of `length` in all, of each anchor; padding may be among them."""
    prefix = kernel.prefix
    found = [[j] for j in range(prefix)]
    for size in kernel.sizes:
        if kernel.grid is None:
            body = [j for j in real if j >= prefix]
            found += [[body[t] for t in members] for members in _bins(len(body), size**2)]
            continue
        scale = ((length - prefix) / math.prod(kernel.grid)) ** (1 / len(kernel.grid))
        extents = [round(extent * scale) for extent in kernel.grid]
        places = list(itertools.product(*map(range, extents)))
        for box in itertools.product(*(_bins(extent, size) for extent in extents)):
            found.append([prefix + places.index(place) for place in itertools.product(*box)])
    return found


def _bins(count: int, bins: int) -> list[list[int]]:
    """Adaptive pooling of an axis of `count`."""
    return [list(range(r * count // bins, math.ceil((r + 1) * count / bins))) for r in range(bins)]
