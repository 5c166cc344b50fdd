"""The largest logits of each query in a block, found on a CPU, and sparse products with them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_GROUPS_PER_KEPT = 4
_GATHERED_AT_ONCE = 2**16


@dataclass(frozen=True)
class Kept:
    """Some entries of a block of logits (h, n, m), query by query.

    Attributes:
        logits: (K,) of the kept entries.
        rows: (K,) their queries among the h n of the block.
        columns: (K,) their keys among the h m of the block.
        shape: h, n, m.
    """

    logits: Tensor
    rows: Tensor
    columns: Tensor
    shape: tuple[int, int, int]

    @classmethod
    def at(cls, logits: Tensor, entries: Tensor) -> Kept:
        """Those at `entries` of the flattened block, in increasing order."""
        h, n, m = logits.shape
        rows = entries.div(m, rounding_mode="floor")
        columns = entries - rows * m
        if h > 1:
            columns += rows.div(n, rounding_mode="floor") * m
        return cls(logits.view(-1).index_select(0, entries), rows, columns, (h, n, m))

    @classmethod
    def above(cls, logits: Tensor, threshold: Tensor) -> Kept:
        """Those that are not below `threshold` (h, n, 1)."""
        return cls.at(logits, torch.from_numpy(np.flatnonzero(logits.numpy() >= threshold.numpy())))

    @functools.cached_property
    def by_column(self) -> Tensor:
        """Order (K,) of the entries by key, then by query."""
        columns = self.columns.numpy()
        # Sorting numbers of 16 bits takes time linear in how many they are.
        narrow = columns.astype(np.uint16) if self.shape[0] * self.shape[2] <= 2**16 else columns
        return torch.from_numpy(narrow.argsort(kind="stable"))

    def softmax(self) -> tuple[Tensor, Tensor]:
        """Weights (K,) that sum to 1 for each query, and logarithms of the normalisers (h, n)."""
        h, n, _ = self.shape
        largest = self.logits.new_full((h * n,), -math.inf).scatter_reduce_(0, self.rows, self.logits, "amax")
        terms = (self.logits - largest.index_select(0, self.rows)).exp_()
        normaliser = torch.zeros_like(largest).index_add_(0, self.rows, terms)
        return terms / normaliser.index_select(0, self.rows), (largest + normaliser.log()).view(h, n)

    def weights(self, log_normaliser: Tensor) -> Tensor:
        """The weights (K,) of `softmax` from its normalisers."""
        return (self.logits - log_normaliser.reshape(-1).index_select(0, self.rows)).exp_()

    def in_logits(self, weights: Tensor, grad: Tensor, value: Tensor) -> Tensor:
        """Gradient (K,) in the kept logits: w_ij (g_i . v_j - sum_j' w_ij' g_i . v_j') for g (h, n, E), v (h, m, E)."""
        g, v = grad.reshape(-1, grad.shape[-1]), value.reshape(-1, value.shape[-1])
        parts = zip(self.rows.split(_GATHERED_AT_ONCE), self.columns.split(_GATHERED_AT_ONCE), strict=True)
        in_weights = torch.cat([torch.einsum("ke,ke->k", g.index_select(0, i), v.index_select(0, j)) for i, j in parts])
        mean = g.new_zeros(len(g)).index_add_(0, self.rows, weights * in_weights)
        return weights * (in_weights - mean.index_select(0, self.rows))


def sum_of_keys(kept: Kept, weights: Tensor, x: Tensor) -> Tensor:
    """sum_j w_ij x_j over the kept entries, (h, n, E) for w (K,) and x (h, m, E)."""
    h, n, _ = kept.shape
    return _sum(kept.columns, kept.rows, weights, x, h * n).view(h, n, -1)


def sum_of_queries(kept: Kept, weights: Tensor, x: Tensor) -> Tensor:
    """sum_i w_ij x_i over the kept entries, (h, m, E) for w (K,) and x (h, n, E)."""
    h, _, m = kept.shape
    order = kept.by_column
    rows, columns, weights = (t.index_select(0, order) for t in (kept.rows, kept.columns, weights))
    return _sum(rows, columns, weights, x, h * m).view(h, m, -1)


def _sum(indices: Tensor, bags: Tensor, weights: Tensor, x: Tensor, num_bags: int) -> Tensor:
    """Row b is the sum of w x[index] over the entries of bag b; bags are in increasing order."""
    starts = torch.searchsorted(bags, torch.arange(num_bags))
    return F.embedding_bag(indices, x.reshape(-1, x.shape[-1]), starts, mode="sum", per_sample_weights=weights)


def find_kept(logits: Tensor, count: int) -> tuple[Kept, Tensor]:
    """The `count` largest logits of each query, those equal to the smallest of them included, and that one (h, n).

    The `count`-th largest of the maxima of a few times as many groups of keys is a bound from below that few logits
    pass; only these are partitioned.

    Args:
        logits: (h, n, m) on a CPU, -inf where a query does not see a key: these are never kept.
        count: less than m.
    """
    h, n, m = logits.shape
    table = logits.view(h * n, m).numpy()
    lowest = np.finfo(table.dtype).min
    group = m // (_GROUPS_PER_KEPT * count)
    if group < 2:
        threshold = np.maximum(_kth_largest(table, count), lowest)
        entries = np.flatnonzero(table >= threshold[:, None])
    else:
        num_groups = m // group
        maxima = table[:, : group * num_groups].reshape(h * n, group, num_groups).max(1)
        bound = np.maximum(_kth_largest(maxima, count), lowest)
        entries = np.flatnonzero(table >= bound[:, None])
        # The candidates of each query in a row of their own, filled up with -inf.
        starts = np.searchsorted(entries, np.arange(h * n + 1) * m)
        widest = max(int(np.diff(starts).max()), count)
        place = starts[:-1, None] + np.arange(widest)
        inside = place < starts[1:, None]
        found = np.full(place.shape, -np.inf, table.dtype)
        found[inside] = table.reshape(-1)[entries]
        threshold = np.maximum(_kth_largest(found, count), lowest)
        entries = entries[found[inside] >= threshold.repeat(np.diff(starts))]
    return Kept.at(logits, torch.from_numpy(entries)), torch.from_numpy(threshold).view(h, n)


def kth_largest(logits: Tensor, count: int) -> Tensor:
    """The `count`-th largest of each query's logits (h, n, m), the lowest finite number if it is -inf or missing."""
    lowest = torch.finfo(logits.dtype).min
    if count >= logits.shape[-1]:
        return logits.new_full(logits.shape[:-1], lowest)
    if logits.device.type == "cpu":
        return torch.from_numpy(_kth_largest(logits.numpy(), count)).clamp_(min=lowest)
    return logits.topk(count, sorted=False).values.amin(-1).clamp_(min=lowest)


def _kth_largest(table: np.ndarray, count: int) -> np.ndarray:
    kth = table.shape[-1] - count
    return np.partition(table, kth, axis=-1)[..., kth]
