"""The Nyström kernel: softmax attention by way of landmarks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention.contract import Capabilities, MixerSpec
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.token_convolution import convolution_flops, convolve_tokens
from reattend.attention.slots import HeadGroup, Kernel


class NystromformerKernel(Kernel):
    """Nyströmformer (Xiong et al. 2021, arXiv 2102.03902, Eqn 13 to 15).

        h = softmax(Q K~^T / sqrt(D)) Z softmax(Q~ K^T / sqrt(D)) V + conv(V),   Z ~ softmax(Q~ K~^T / sqrt(D))^+

    Landmarks Q~ and K~ are the means of `num_landmarks` segments of the real tokens, nearly equal as those of
    `numpy.array_split`: the first ones have a token more where the length is no multiple. Z is iterated as

        Z_0 = A^T / (|A|_1 |A|_inf),   Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4.

    A sequence of no more real tokens than landmarks gets softmax attention itself. The convolution over the tokens has
    a filter per head, and zero at padding. Time and memory are linear in length. Landmarks, Z and what meets Z are
    float32 at least, under autocast too: Z has large entries that cancel.

    Args:
        spec: the place it is built for.
        num_landmarks: number of segments.
        iterations: steps of the iteration for Z.
        conv_kernel_size: length of the filters, odd; None leaves the convolution out.
    """

    shift_invariant = True
    pooled_keys = False

    def __init__(
        self, spec: MixerSpec, *, num_landmarks: int = 64, iterations: int = 6, conv_kernel_size: int | None = 35
    ) -> None:
        super().__init__(spec)
        self.num_landmarks = num_landmarks
        self.iterations = iterations
        self.conv_kernel_size = conv_kernel_size
        if conv_kernel_size is not None:
            self.filters = nn.Parameter(torch.empty(self.num_heads, conv_kernel_size))
            bound = 1 / math.sqrt(conv_kernel_size)
            nn.init.uniform_(self.filters, -bound, bound)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        return Capabilities(
            attention_map=True,
            time_exponent=1.0,
            reasons={
                "causal": "landmarks average tokens of the future",
                "context": "its landmarks and the convolution of its values pair queries and keys of one sequence",
            },
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        num_landmarks, iterations = options.get("num_landmarks", 64), options.get("iterations", 6)
        size = options.get("conv_kernel_size", 35)
        found = []
        if num_landmarks < 1:
            found.append(f"num_landmarks={num_landmarks} must be at least 1")
        if iterations < 0:
            found.append(f"iterations={iterations} must be at least 0")
        if size is not None and (size < 1 or size % 2 == 0):
            found.append(f"conv_kernel_size={size} must be odd, so that a filter has a centre, or null for none")
        return found

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        dropout: float = 0.0,
        group: HeadGroup | None = None,
    ) -> Tensor:
        with without_autocast(q):
            out = self._approximate(q, k, v, key_mask)
            if self.conv_kernel_size is not None:
                values = v if key_mask is None else v.masked_fill(~key_mask[:, None, :, None], 0.0)
                out = out + convolve_tokens(values, self.filters.to(v.dtype))
        return out if key_mask is None else out.masked_fill(~key_mask.any(1)[:, None, None, None], 0.0)

    def _approximate(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if q.shape[2] <= self.num_landmarks:
            return _attend(q.to(v.dtype), k.to(v.dtype), v, key_mask)
        segments = None if key_mask is None else _segments(key_mask, self.num_landmarks, _wide(q))
        q_marks, k_marks = (_means(x, self.num_landmarks, segments) for x in (q, k))
        v_marks = _attend(q_marks.to(v.dtype), k.to(v.dtype), v, key_mask).to(q_marks.dtype)
        v_marks = self._inverse(q_marks, k_marks) @ v_marks
        real = None
        if key_mask is not None and segments is not None:
            # With a token in each segment and no more, softmax over the landmarks is softmax over the tokens.
            few = (key_mask.sum(1) <= self.num_landmarks)[:, None, None, None]
            v_marks = torch.where(few, _means(v, self.num_landmarks, segments), v_marks)
            real = segments.any(2)
        return _attend(q.to(k_marks.dtype), k_marks, v_marks, real).to(v.dtype)

    def _inverse(self, q_marks: Tensor, k_marks: Tensor) -> Tensor:
        """Z, (B, H, L, L)."""
        a = (q_marks @ k_marks.mT / math.sqrt(self.head_dim)).softmax(-1)
        identity = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)
        # Rows of a softmax sum to 1, so |A|_inf is 1.
        z = a.mT / a.sum(-2).amax(-1)[..., None, None]
        for _ in range(self.iterations):
            az = a @ z
            z = 0.25 * z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az)))
        return z

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        group: HeadGroup | None = None,
    ) -> Tensor:
        """The product of the three matrices, without the convolution; rows sum to 1 as nearly as Z is the inverse."""
        identity = torch.eye(k.shape[2], device=k.device, dtype=_wide(k)).expand(*k.shape[:2], -1, -1)
        with without_autocast(q):
            product = self._approximate(q, k, identity, key_mask)
        return product if key_mask is None else product.masked_fill(~key_mask.any(1)[:, None, None, None], 0.0)

    def flops(self, num_queries: int, num_keys: int) -> int:
        """Both attentions to or from landmarks, Z, its product with values, and the convolution as matrix products."""
        marks, dim = self.num_landmarks, self.head_dim
        if num_keys <= marks:
            attention = 4 * num_queries * num_keys * dim
        else:
            inverse = 2 * marks**2 * dim + 8 * self.iterations * marks**3 + 2 * marks**2 * dim
            attention = 4 * (num_queries + num_keys) * marks * dim + inverse
        if self.conv_kernel_size is None:
            return attention
        return attention + convolution_flops(num_keys, dim, self.conv_kernel_size)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _attend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Fused softmax attention; a sample without a real key sees all of them."""
    if key_mask is None:
        return F.scaled_dot_product_attention(q, k, v)
    visible = key_mask | ~key_mask.any(1, keepdim=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None, None, :])


def _segments(mask: Tensor, num: int, dtype: torch.dtype) -> Tensor:
    """(B, L, N): 1 / n at the n real tokens of each segment, zero elsewhere; a sample may leave segments empty."""
    count = mask.sum(1, keepdim=True)
    size = (count // num).clamp(min=1)
    longer = (count - size * num).clamp(min=0)
    rank = mask.cumsum(1) - 1
    segment = torch.where(rank < longer * (size + 1), rank // (size + 1), (rank - longer) // size)
    member = (segment[:, None] == torch.arange(num, device=mask.device)[:, None]) & mask[:, None]
    return member.to(dtype) / member.sum(2, keepdim=True).clamp(min=1)


def _means(x: Tensor, num: int, segments: Tensor | None) -> Tensor:
    """Mean of each segment, (B, H, N, D) to (B, H, L, D)."""
    if segments is not None:
        tokens = x.to(segments.dtype).transpose(1, 2).flatten(2)
        of_heads: Tensor = (segments @ tokens).unflatten(2, (x.shape[1], -1))
        return of_heads.transpose(1, 2)
    size, longer = divmod(x.shape[2], num)
    counts = [(longer, size + 1), (num - longer, size)] if longer else [(num, size)]
    parts = x.split([segments * tokens for segments, tokens in counts], dim=2)
    means = [part.unflatten(2, count).mean(3, dtype=_wide(x)) for part, count in zip(parts, counts, strict=True)]
    return torch.cat(means, dim=2) if longer else means[0]
