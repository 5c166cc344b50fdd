"""SOFT: attention without a softmax, a Gaussian kernel of shared queries and keys, and its low-rank form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, check_mask
from reattend.attention.ops.gaussian import gaussian_kernel
from reattend.attention.ops.precision import without_autocast


class Soft(Mixer):
    """Attention whose weights are a Gaussian kernel, without a normaliser.

        h_i = sum_j exp(-|q_i - q_j|^2 / (2 sqrt(D))) v_j

    (Lu et al. 2021, arXiv 2110.11945, section 3.) Queries are their own keys, which makes the kernel matrix S
    symmetric and positive. With landmarks, S is replaced by C Z C^T: C is the kernel of tokens and
    landmarks, A of the landmarks among themselves, and Z the inverse of A by Newton's iteration

        Z_0 = A / |A|_1^2,   Z <- Z (2 - A Z),

    which leaves directions out whose eigenvalue is below about |A|_1 / 2^(num_iterations / 2). The published Z_0 is
    twice as large, which is the border of convergence, and its code halves it when needed. A sequence of no more real
    tokens than landmarks has each as its own, so that C Z C^T is S.

    Landmarks are means of equal runs of real tokens (the paper's average pooling); the published code's strided
    convolution with layer normalisation, its convolution of the values, and the normalised kernel of SOFT++
    (arXiv 2207.03341) are left out. Kernel and Z are float32 at least, under autocast too, and Z is float64.

    Args:
        spec: the place it is built for.
        num_landmarks: number of landmarks; the paper has 49. None for S itself, in time and memory N^2.
        num_iterations: Newton steps.
        bias: whether the linear layers have biases.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    def __init__(
        self, spec: MixerSpec, *, num_landmarks: int | None = 49, num_iterations: int = 20, bias: bool = True
    ) -> None:
        super().__init__()
        self.refuse_problems(spec, num_landmarks=num_landmarks, num_iterations=num_iterations)
        self.spec = spec
        self.num_landmarks = num_landmarks
        self.num_iterations = num_iterations
        self.qk = nn.Linear(spec.dim, spec.dim, bias=bias)
        self.v = nn.Linear(spec.dim, spec.dim, bias=bias)
        self.proj = nn.Linear(spec.dim, spec.dim, bias=bias)
        for layer in (self.qk, self.v):
            nn.init.xavier_uniform_(layer.weight)
        if bias:
            for layer in (self.qk, self.v, self.proj):
                nn.init.zeros_(layer.bias)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            time_exponent=2.0 if options.get("num_landmarks", 49) is None else 1.0,
            reasons={
                "causal": "landmarks average tokens of the future, and the inverse mixes all of them",
                "context": "queries are their own keys, so there is no other sequence to take keys from",
                "decoding": "it is not causal",
                "attention_map": "its weights have no normaliser, so outputs are no average of the values",
            },
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = super().problems(spec, **options)
        num_landmarks = options.get("num_landmarks")
        if num_landmarks is not None and num_landmarks < 1:
            found.append(f"num_landmarks={num_landmarks} must be at least 1, or null for the whole kernel")
        if options.get("num_iterations", 1) < 0:
            found.append(f"num_iterations={options['num_iterations']} must not be negative")
        return found

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Attends among the tokens of `x` (B, N, D); a sample without a real token gives zero.

        Raises:
            ValueError: for a mask that is not bool, or a context.
        """
        if context is not None or context_mask is not None:
            raise ValueError("this attention takes no context: queries are their own keys")
        check_mask(padding_mask)
        value = self.v(x)
        with without_autocast(x):
            wide = torch.promote_types(value.dtype, torch.float32)
            q, v = self._heads(self.qk(x).to(wide)), self._heads(value.to(wide))
            q = q / q.shape[-1] ** 0.25
            if padding_mask is not None:
                v = v.masked_fill(~padding_mask[:, None, :, None], 0.0)
            if self.num_landmarks is None:
                out = gaussian_kernel(q, q) @ v
            else:
                out = self._low_rank(q, v, padding_mask, min(self.num_landmarks, x.shape[1]))
        y: Tensor = self.proj(out.transpose(1, 2).flatten(2).to(value.dtype))
        return y if padding_mask is None else y.masked_fill(~padding_mask.any(1)[:, None, None], 0.0)

    def _low_rank(self, q: Tensor, v: Tensor, real: Tensor | None, num_landmarks: int) -> Tensor:
        pooling, used = _runs(q, real, num_landmarks)
        landmarks = pooling @ q
        tokens = gaussian_kernel(q, landmarks) * used[:, None, None].to(q.dtype)
        among = gaussian_kernel(landmarks, landmarks).double()
        # A landmark without tokens is a block of its own, which meets no value.
        pairs = (used[:, :, None] & used[:, None, :])[:, None]
        among = torch.where(pairs, among, torch.eye(num_landmarks, dtype=among.dtype, device=among.device))
        sums = newton_inverse(among, self.num_iterations) @ (tokens.mT @ v).double()
        out: Tensor = tokens @ sums.to(v.dtype)
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, H, N, d)."""
        return x.view(*x.shape[:2], self.spec.num_heads, -1).transpose(1, 2)

    def flops(self, length: int) -> int:
        """Linear layers, kernels, Newton steps and weighted values."""
        dim, linear = self.spec.dim, 2 * length * 3 * self.spec.dim**2
        if self.num_landmarks is None:
            return linear + 4 * length**2 * dim
        landmarks = min(self.num_landmarks, length)
        inverse = 4 * self.num_iterations * self.spec.num_heads * landmarks**3
        return linear + 6 * length * landmarks * dim + 4 * landmarks**2 * dim + inverse


def newton_inverse(matrix: Tensor, num_iterations: int) -> Tensor:
    """Newton's iteration for the inverse of symmetric matrices (..., M, M); converges to the pseudo-inverse."""
    largest = matrix.abs().sum(-1).amax(-1)[..., None, None]
    inverse = matrix / largest.square()
    for _ in range(num_iterations):
        inverse = 2 * inverse - inverse @ matrix @ inverse
    return inverse


def _runs(q: Tensor, real: Tensor | None, num_runs: int) -> tuple[Tensor, Tensor]:
    """Matrix (B, 1, M, N) that averages the real tokens of each run, and (B, M), True at runs that have any.

    Run r has the real tokens number t, of n, with floor(t M / n) = r, so that up to M tokens have a run each.
    """
    length = q.shape[2]
    if real is None:
        real = torch.ones(1, length, dtype=torch.bool, device=q.device)
    count = real.sum(1, keepdim=True)
    run = (real.cumsum(1) - 1) * num_runs // count.clamp(min=1)
    members = (run[:, None] == torch.arange(num_runs, device=q.device)[:, None]) & real[:, None]
    sizes = members.sum(-1, keepdim=True)
    return (members.to(q.dtype) / sizes.clamp(min=1))[:, None], sizes.squeeze(-1) > 0
