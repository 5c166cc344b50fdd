"""Linformer, sample by sample and head by head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.linformer import Linformer


def forward(
    mixer: Linformer,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """softmax(Q (E K)^T / sqrt(d)) (F V) of each head, K and V zero at padding (arXiv 2006.04768, Eqn 7).

    In float64 from the mixer's own parameters, without dropout. A sample without a real token gets zero.

    Args:
        mixer: the module.
        x: (B, N, D).
        padding_mask: (B, N), True at real tokens.
        context: None.
        context_mask: None.

    Returns:
        (B, N, D) in float64.
    """
    num_heads, length = mixer.spec.num_heads, x.shape[1]
    weight = mixer.rows.weight.double()
    biases = torch.zeros(3, mixer.spec.dim) if mixer.qkv.bias is None else mixer.qkv.bias.reshape(3, -1)
    samples = []
    for b, tokens in enumerate(x.double()):
        real = [True] * length if padding_mask is None else padding_mask[b].tolist()
        q, k, v = (
            tokens @ w.T + bias for w, bias in zip(mixer.qkv.weight.double().chunk(3), biases.double(), strict=True)
        )
        heads = []
        for h in range(num_heads):
            q_h, k_h, v_h = (t.chunk(num_heads, dim=1)[h] for t in (q, k, v))
            e = weight[0, h if mixer.sharing == "none" else 0]
            f = weight[1 if mixer.sharing in ("none", "headwise") else 0, h if mixer.sharing == "none" else 0]
            keys = sum(e[:, j : j + 1] * k_h[j] for j in range(length) if real[j])
            values = sum(f[:, j : j + 1] * v_h[j] for j in range(length) if real[j])
            if not any(real):
                heads.append(torch.zeros_like(q_h))
                continue
            assert isinstance(keys, Tensor)
            logits = q_h @ keys.T / math.sqrt(q_h.shape[1])
            heads.append((logits - logits.logsumexp(1, keepdim=True)).exp() @ values)
        y = torch.cat(heads, dim=1) @ mixer.proj.weight.double().T
        y = y if mixer.proj.bias is None else y + mixer.proj.bias.double()
        samples.append(y if any(real) else torch.zeros_like(y))
    return torch.stack(samples)
