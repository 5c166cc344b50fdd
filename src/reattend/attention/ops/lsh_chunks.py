"""How tokens go to the chunks of one round of hashing, and which pairs there see each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Chunks:
    """One round of some rows (S, N): how tokens go to their places in C chunks of m, and what a query there sees.

    Attributes:
        size: m.
        source: (S, (C + 1) m), flat index of the token at each place after one empty chunk in front; places without a
            token hold any.
        place: (S * N), flat place of each token.
        hidden: (S, C, m, 2 m), True at pairs that do not see each other, or None if all do but a token and itself.
        penalty: (S, C, m, 2 m), log of how often a pair meets in all rounds, or None.
        short: number of places at the end without a token.
    """

    size: int
    source: Tensor
    place: Tensor
    hidden: Tensor | None
    penalty: Tensor | None
    short: int

    def queries(self, x: Tensor) -> Tensor:
        """(S, N, ...) to (S, C, m, ...)."""
        flat = x.flatten(0, 1).index_select(0, self.source[:, self.size :].flatten())
        return flat.view(len(x), -1, self.size, *x.shape[2:])

    def keys(self, x: Tensor) -> Tensor:
        """(S, N, D) to (S, C, 2 m, D), overlapping windows of one tensor."""
        flat = x.flatten(0, 1).index_select(0, self.source.flatten())
        return _windows(flat.view(len(x), -1, *x.shape[2:]), self.size)

    def to_tokens(self, x: Tensor, rows: int) -> Tensor:
        """(S, C, m, ...) to (S, N, ...)."""
        return x.flatten(0, 2).index_select(0, self.place).view(rows, -1, *x.shape[3:])

    def sum_to_tokens(self, x: Tensor, rows: int) -> Tensor:
        """(S, C, 2 m, D) to (S, N, D): the two values of a token, as a key of its own chunk and of the next, summed."""
        own = x[:, :, self.size :].contiguous()
        own[:, :-1] += x[:, 1:, : self.size]
        return self.to_tokens(own, rows)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        """q . k of (S, C, m, D) and (S, C, 2 m, D) less the penalty, -inf at hidden pairs."""
        logits, m = q @ k.mT, self.size
        if self.penalty is not None:
            logits -= self.penalty.to(logits.dtype)
        if self.hidden is not None:
            return logits.masked_fill_(self.hidden, -torch.inf)
        logits.diagonal(m, -2, -1).fill_(-torch.inf)
        logits[:, 0, :, :m] = -torch.inf
        if self.short:
            logits[:, -1, :, 2 * m - self.short :] = -torch.inf
            logits[:, -1, m - self.short :] = -torch.inf
        return logits


def _windows(x: Tensor, size: int) -> Tensor:
    """(S, (C + 1) m, ...) to (S, C, 2 m, ...), as a view."""
    return x.unfold(1, 2 * size, size).movedim(-1, 2)


def rounds(
    order: Tensor,
    buckets: Tensor,
    num_real: Tensor | None,
    size: int,
    causal: bool,
    across_buckets: bool,
    count_duplicates: bool,
) -> Iterator[Chunks]:
    """The chunks of each round for rows (R, S, N)."""
    _, rows, length = order.shape
    short = -length % size
    offsets = torch.arange(rows, device=order.device)[:, None]
    places = torch.arange(length, device=order.device).expand(rows, length)
    every_place = torch.stack([torch.empty_like(tokens).scatter_(1, tokens, places) for tokens in order])
    for tokens, place, bucket in zip(order, every_place, buckets, strict=True):
        hidden = penalty = None
        if causal or num_real is not None or not across_buckets:
            q_at, k_at = _positions(tokens, num_real, size, short)
            hidden = k_at >= q_at if causal else (k_at == q_at) | (k_at == length) | (q_at < 0)
            if not across_buckets:
                sorted_bucket = F.pad(bucket.gather(1, tokens), (size, short))
                hidden |= _of_queries(sorted_bucket, size) != _of_keys(sorted_bucket, size)
        if not count_duplicates:
            penalty = _meetings(tokens, every_place // size, None if across_buckets else buckets, size, short)
        source = F.pad(tokens + offsets * length, (size, short))
        yield Chunks(size, source, (place + offsets * (length + short)).flatten(), hidden, penalty, short)


def _positions(tokens: Tensor, num_real: Tensor | None, size: int, short: int) -> tuple[Tensor, Tensor]:
    """Positions of queries (S, C, m, 1), -1 where there is none, and of keys (S, C, 1, 2 m), N where there is none."""
    length = tokens.shape[1]
    places = torch.arange(length, device=tokens.device)
    absent = places >= (length if num_real is None else num_real[:, None])
    q_at = F.pad(tokens.masked_fill(absent, -1), (size, short), value=-1)
    k_at = F.pad(tokens.masked_fill(absent, length), (size, short), value=length)
    return _of_queries(q_at, size), _of_keys(k_at, size)


def _of_queries(x: Tensor, size: int) -> Tensor:
    """(S, (C + 1) m) to (S, C, m, 1)."""
    return x[:, size:].view(len(x), -1, size, 1)


def _of_keys(x: Tensor, size: int) -> Tensor:
    """(S, (C + 1) m) to (S, C, 1, 2 m)."""
    return _windows(x, size).unsqueeze(2)


def _meetings(tokens: Tensor, chunks: Tensor, buckets: Tensor | None, size: int, short: int) -> Tensor:
    """log N_ij (S, C, m, 2 m) for sorted tokens (S, N), from the chunks (R, S, N) of every token in all rounds."""
    count: Tensor | int = 0
    for r, chunk in enumerate(chunks):
        at = F.pad(chunk.gather(1, tokens), (size, short))
        ahead = _of_queries(at, size) - _of_keys(at, size)
        meets = (ahead == 0) | (ahead == 1)
        if buckets is not None:
            bucket = F.pad(buckets[r].gather(1, tokens), (size, short))
            meets &= _of_queries(bucket, size) == _of_keys(bucket, size)
        count = count + meets
    return torch.as_tensor(count, dtype=torch.float64).clamp(min=1).log()


def is_real(order: Tensor, num_real: Tensor) -> Tensor:
    """(S, N, 1), True at real tokens."""
    places = torch.arange(order.shape[-1], device=order.device)
    return torch.zeros_like(order[0], dtype=torch.bool).scatter_(1, order[0], places < num_real[:, None])[..., None]
