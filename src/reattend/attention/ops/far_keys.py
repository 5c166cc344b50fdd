"""Attention to keys that lie far apart: every l-th, or the last of each block of l. Memory linear in length."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.attend_with_lse import attend_with_lse
from reattend.attention.ops.blocks import attend_blocks

_ROWS = 4  # Queries of a block that are in one group, in `attend_earlier_summaries`.


def attend_columns(
    q: Tensor, k: Tensor, v: Tensor, window: int, *, causal: bool, real: Tensor | None = None, scale: int = 1
) -> tuple[Tensor, Tensor]:
    """Attention of token i to the keys with a token j, (i - j) mod `window` = 0: O(N^2 / window) time.

    With `window` tokens in a row, each column attends to itself.

    Args:
        q: (B, H, N, D).
        k: (B, H, M, D), M = ceil(N / `scale`): key j stands for tokens j `scale` to (j + 1) `scale` - 1.
        v: (B, H, M, D).
        window: l.
        causal: only j <= i; `scale` is then 1.
        real: (B, N), True at real tokens; None if all are.
        scale: number of tokens that a key stands for.

    Returns:
        Output (B, H, N, D) and log-sum-exp (B, H, N).
    """
    length = q.shape[2]
    rows = -(-length // window)
    short = rows * window - length
    if real is None and (short or scale > window):
        real = torch.ones(1, length, dtype=torch.bool, device=q.device)
    if scale > 1:
        k, v = (x.repeat_interleave(scale, dim=2)[:, :, :length] for x in (k, v))
    if real is not None:
        if scale > window:
            real = _first_of_residue(real, window, scale)
        real = F.pad(real, (0, short)).unflatten(1, (rows, window)).mT.unsqueeze(2)
    q, k, v = (F.pad(x, (0, 0, 0, short)).unflatten(2, (rows, window)).transpose(2, 3) for x in (q, k, v))
    out, lse = attend_blocks(q, k, v, real, causal)
    return out.transpose(2, 3).flatten(2, 3)[:, :, :length], lse.mT.flatten(2, 3)[:, :, :length]


def _first_of_residue(real: Tensor, window: int, scale: int) -> Tensor:
    """Real tokens (B, N) that no other real one of their key and of their residue mod `window` comes before."""
    keys = F.pad(real, (0, -real.shape[1] % scale)).unflatten(1, (-1, scale))
    later = torch.zeros_like(keys)
    for distance in range(window, scale, window):
        later[..., distance:] |= keys[..., :-distance]
    first: Tensor = keys & ~later
    return first.flatten(1)[:, : real.shape[1]]


def attend_summaries(
    q: Tensor, k: Tensor, v: Tensor, window: int, num_summaries: int, *, real: Tensor | None = None, scale: int = 1
) -> tuple[Tensor, Tensor]:
    """Attention to the keys with a token j, j mod `window` >= `window` - `num_summaries`; as `attend_columns`."""
    length, first = q.shape[2], window - num_summaries
    summaries = [
        token for start in range(first, length, window) for token in range(start, min(start + num_summaries, length))
    ]
    index = torch.tensor(list(dict.fromkeys(token // scale for token in summaries)), dtype=torch.long, device=q.device)
    mask = None
    if real is not None:
        real = real & (torch.arange(length, device=q.device) % window >= first)
        mask = F.pad(real, (0, -length % scale)).unflatten(1, (-1, scale)).any(-1)[:, None, None, index]
    return attend_with_lse(q, k[:, :, index], v[:, :, index], mask)


def attend_earlier_summaries(
    q: Tensor, k: Tensor, v: Tensor, window: int, num_summaries: int, *, real: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention to the last `num_summaries` tokens of each block of `window` before the query's own block.

    Arguments as those of `attend_columns`. A few queries of each block are in one group, so that the mask of a group
    has (N / l, c N / l) entries but for a constant.
    """
    length = q.shape[2]
    blocks = -(-length // window)
    rows = math.gcd(window, _ROWS)

    def last(x: Tensor, dim: int) -> Tensor:
        whole: Tensor = x.narrow(dim, 0, (blocks - 1) * window).unflatten(dim, (blocks - 1, window))
        return whole.narrow(dim + 1, window - num_summaries, num_summaries).flatten(dim, dim + 1)

    q = F.pad(q, (0, 0, 0, blocks * window - length)).unflatten(2, (blocks, -1, rows)).transpose(2, 3).flatten(3, 4)
    k, v = (last(x, 2).unsqueeze(2).expand(-1, -1, window // rows, -1, -1) for x in (k, v))
    block = torch.arange(blocks, device=q.device)
    mask = block.repeat_interleave(rows)[:, None] > block[:-1].repeat_interleave(num_summaries)
    mask = mask[None, None] if real is None else mask & last(real, 1)[:, None, None]
    out, lse = attend_blocks(q, k, v, mask)
    out, lse = (x.unflatten(3, (blocks, rows)).transpose(2, 3).flatten(2, 4)[:, :, :length] for x in (out, lse))
    return out, lse
