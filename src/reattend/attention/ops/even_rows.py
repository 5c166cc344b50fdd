"""Rows of a sequence at even distances."""

from __future__ import annotations

import torch
from torch import Tensor


def even_rows(x: Tensor, padding_mask: Tensor | None, num_rows: int) -> Tensor:
    """Rows floor(i (L - 1) / (n - 1)) of the L real tokens of each sample of `x` (B, N, D): (B, n, D)."""
    steps = torch.arange(num_rows, device=x.device)
    if padding_mask is None:
        return x[:, steps * (x.shape[1] - 1) // max(num_rows - 1, 1)]
    counts = padding_mask.cumsum(1)
    chosen = steps * (counts[:, -1:] - 1).clamp(min=0) // max(num_rows - 1, 1)
    # The token before which `chosen` real ones stand.
    places = torch.searchsorted(counts, chosen + 1).clamp(max=x.shape[1] - 1)
    return x.gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))
