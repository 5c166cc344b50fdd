"""Nyström attention of one head of one sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reattend.attention.kernels.nystromformer import NystromformerKernel
from reattend.attention.naive.tokens import Tokens


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: NystromformerKernel, tokens: Tokens) -> Tensor:
    """Nyström attention plus a convolution of the values, for q (N, D), k and v (M, D) of real tokens.

    Xiong et al. 2021 (arXiv 2102.03902), Eqn 13 to 15; softmax attention with no more keys than landmarks.
    """
    if len(k) <= kernel.num_landmarks:
        output = _softmax(q, k) @ v
    else:
        real_q = q[[i for i in range(len(q)) if tokens.queries[i]]]
        q_marks, k_marks = _means(real_q, kernel.num_landmarks), _means(k, kernel.num_landmarks)
        inverse = _pseudo_inverse(_softmax(q_marks, k_marks), kernel.iterations)
        output = _softmax(q, k_marks) @ inverse @ _softmax(q_marks, k) @ v
    if kernel.conv_kernel_size is None:
        return output
    return output + _convolution(v, kernel.filters[tokens.head].double(), len(q), [span[0] for span in tokens.keys])


def _softmax(q: Tensor, k: Tensor) -> Tensor:
    logits = q @ k.T / math.sqrt(q.shape[1])
    return (logits - logits.logsumexp(1, keepdim=True)).exp()


def _means(x: Tensor, num: int) -> Tensor:
    """Means of segments of which the first `len(x) % num` have a token more."""
    sizes = [len(x) // num + (segment < len(x) % num) for segment in range(num)]
    return torch.stack([part.mean(0) for part in x.split(sizes)])


def _pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    identity = torch.eye(len(a), dtype=a.dtype)
    z = a.T / (a.abs().sum(0).max() * a.abs().sum(1).max())
    for _ in range(iterations):
        z = z @ (13 * identity - a @ z @ (15 * identity - a @ z @ (7 * identity - a @ z))) / 4
    return z


def _convolution(v: Tensor, weights: Tensor, length: int, positions: list[int]) -> Tensor:
    """Row i is the sum over t of weight t times the value at position i + t - K // 2, where a real token is there."""
    rows = []
    for i in range(length):
        offsets = [position - i + len(weights) // 2 for position in positions]
        near = [(row, offset) for row, offset in enumerate(offsets) if 0 <= offset < len(weights)]
        rows.append(sum((weights[offset] * v[row] for row, offset in near), torch.zeros_like(v[0])))
    return torch.stack(rows)
