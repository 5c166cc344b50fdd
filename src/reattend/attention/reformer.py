"""Reformer's attention: queries that are their own keys, and hashing that finds which of them are near each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reattend.attention.contract import Capabilities, Mixer, MixerSpec, check_mask
from reattend.attention.ops.hashing import bucket_factors, cross_polytope, order_by_bucket
from reattend.attention.ops.lsh_attention import lsh_attention
from reattend.attention.ops.precision import without_autocast
from reattend.attention.ops.unit import unit


class Reformer(Mixer):
    """Attention with shared queries and keys among tokens that locality-sensitive hashing sorts near each other.

        o_i = sum_{j in P_i} N_ij exp(q_i . k_j) v_j / sum_{j in P_i} N_ij exp(q_i . k_j)

    (Kitaev et al. 2020, arXiv 2001.04451, section 2 and appendix A.) Keys are queries of length one, k_j = q_j / |q_j|;
    as in the authors' code there is no further 1 / sqrt(D). A round of hashing puts a token into the bucket
    argmax([q R; -q R]), sorts the tokens by bucket and position, and cuts them into chunks; P_i are the tokens of i's
    chunk and of the one before in some round, without i. A token with an empty P_i gets its own value.

    As in the published code, tokens of another bucket in these chunks are attended to, and N_ij counts the rounds in
    which i and j meet; the paper's sets have tokens of i's bucket alone, each once (`attend_across_buckets` and
    `count_duplicates` at false). As in the paper and unlike the code, the first chunk sees itself only: it does not
    wrap around. The rotations are drawn once and kept in the checkpoint.

    Padding is sorted to the end, is not attended to, and attends to nothing.

    Args:
        spec: the place it is built for.
        chunk_size: number of sorted tokens in a chunk.
        num_rounds: rounds of hashing.
        num_buckets: even number of buckets, or even factors of it, each the values of one digit of a hash; None for
            two buckets a chunk at `spec.max_length`, as a power of two, in two factors if it is above 128.
        attend_across_buckets: whether a token sees other buckets in its chunks.
        count_duplicates: whether a pair that meets in several rounds counts that often; otherwise once.
        redraw: draw new rotations at each forward pass in training, as the published code does.
        bias: whether the linear layers have biases; the published code has none.

    Raises:
        ReattendError: if `problems` finds any; names them all.
    """

    rotations: Tensor

    def __init__(
        self,
        spec: MixerSpec,
        *,
        chunk_size: int = 64,
        num_rounds: int = 8,
        num_buckets: int | Sequence[int] | None = None,
        attend_across_buckets: bool = True,
        count_duplicates: bool = True,
        redraw: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.refuse_problems(spec, chunk_size=chunk_size, num_rounds=num_rounds, num_buckets=num_buckets)
        self.spec = spec
        self.chunk_size = chunk_size
        self.attend_across_buckets = attend_across_buckets
        self.count_duplicates = count_duplicates
        self.redraw = redraw
        self.factors = _factors(num_buckets) or bucket_factors(spec.max_length, chunk_size)
        self.qk = nn.Linear(spec.dim, spec.dim, bias=bias)
        self.v = nn.Linear(spec.dim, spec.dim, bias=bias)
        self.proj = nn.Linear(spec.dim, spec.dim, bias=bias)
        head_dim = spec.dim // spec.num_heads
        rotations = torch.randn(num_rounds, spec.num_heads, head_dim, sum(self.factors) // 2)
        self.register_buffer("rotations", rotations)
        for layer in (self.qk, self.v):
            nn.init.xavier_uniform_(layer.weight)
        if bias:
            for layer in (self.qk, self.v, self.proj):
                nn.init.zeros_(layer.bias)

    @classmethod
    def capabilities(cls, **options: Any) -> Capabilities:
        shared = "queries are their own keys, so there is no other sequence to take keys from"
        return Capabilities(
            causal=True,
            blind_to_future=False,
            time_exponent=1.0,
            reasons={
                "context": shared,
                "decoding": "a new token changes how all earlier ones are sorted into chunks",
                "blind_to_future": "no value of a later token is seen, but all tokens are sorted together, so later "
                "ones move the borders of the chunks",
                "attention_map": "it is never formed: a token sees a few others in each round of hashing",
            },
        )

    @classmethod
    def problems(cls, spec: MixerSpec, **options: Any) -> list[str]:
        found = super().problems(spec, **options)
        for name in ("chunk_size", "num_rounds"):
            if options.get(name, 1) < 1:
                found.append(f"{name}={options[name]} must be at least 1")
        num_buckets = options.get("num_buckets")
        if any(factor < 2 or factor % 2 for factor in _factors(num_buckets)) or num_buckets == []:
            found.append(f"num_buckets={num_buckets} must be even and at least 2, or a list of such factors")
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
            buckets = self._buckets(q.detach())
            order = order_by_bucket(buckets, math.prod(self.factors), padding_mask)
            out = lsh_attention(
                q,
                unit(q),
                v,
                order,
                buckets,
                None if padding_mask is None else padding_mask.sum(1),
                chunk_size=min(self.chunk_size, x.shape[1]),
                causal=self.spec.causal,
                across_buckets=self.attend_across_buckets,
                count_duplicates=self.count_duplicates,
            )
        y: Tensor = self.proj(out.transpose(1, 2).flatten(2).to(value.dtype))
        return y if padding_mask is None else y.masked_fill(~padding_mask.any(1)[:, None, None], 0.0)

    def _buckets(self, q: Tensor) -> Tensor:
        """Bucket (R, B, H, N) of each token in each round."""
        if q.shape[2] <= self.chunk_size and self.attend_across_buckets:
            # All tokens meet in the one chunk of every round, and the number of rounds cancels.
            return torch.zeros(1, *q.shape[:3], dtype=torch.int64, device=q.device)
        rotations = torch.randn_like(self.rotations) if self.redraw and self.training else self.rotations
        return cross_polytope(q, rotations, self.factors)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, H, N, d)."""
        heads: Tensor = x.unflatten(2, (self.spec.num_heads, self.spec.dim // self.spec.num_heads))
        return heads.transpose(1, 2)

    def flops(self, length: int) -> int:
        """Linear layers, hashing, and logits and weighted values of two chunks a token and round."""
        # What fits into one chunk is attended to whole, once.
        num_rounds, dim = (self.rotations.shape[0] if length > self.chunk_size else 1), self.spec.dim
        hashing = num_rounds * sum(self.factors) * length * dim if length > self.chunk_size else 0
        attention = 4 * num_rounds * length * min(2 * self.chunk_size, length) * dim
        return 2 * length * 3 * dim**2 + hashing + attention


def _factors(num_buckets: int | Sequence[int] | None) -> list[int]:
    if num_buckets is None:
        return []
    return [num_buckets] if isinstance(num_buckets, int) else list(num_buckets)
