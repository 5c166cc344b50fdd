"""Efficient attention of one head of one sample."""

from __future__ import annotations

from torch import Tensor

from reattend.attention.kernels.efficient import EfficientKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: EfficientKernel, tokens: Tokens) -> Tensor:
    """sum_j sum_c softmax_c(q_ic) softmax_j(k_jc) v_j for q (N, D), k and v (M, D).

    Shen et al. 2018. Causal it is called on a prefix; with `causal_normaliser=kernel` it is then
    sum_j a_ij v_j / sum_j a_ij with a_ij = sum_c exp(q_ic + k_jc).
    """
    if kernel.causal and kernel.causal_normaliser == "kernel":
        logits = (q[:, None, :] + k[None, :, :]).logsumexp(2)
        return (logits - logits.logsumexp(1, keepdim=True)).exp() @ v
    weights: Tensor = q.softmax(1) @ k.softmax(0).T
    return weights @ v
