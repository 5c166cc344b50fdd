"""Sums of weights over a window around each row, tile by tile, and over what is beyond it, block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.precision import without_autocast


@dataclass(frozen=True)
class Window:
    """The biases of a window.

    Attributes:
        tiles: (n, L, S), for each row those of L rows and the keys before and after that one of them sees.
        causal: whether no key is after.
        outside: whether all keys beyond a tile, or before it, have a bias of 0; without, they play no part.
    """

    tiles: Tensor
    causal: bool
    outside: bool

    @property
    def rows(self) -> int:
        """n L, at least as many as there are tokens."""
        return self.tiles.shape[0] * self.tiles.shape[1]

    @property
    def before(self) -> int:
        """Keys that a tile has before its first row."""
        more = self.tiles.shape[2] - self.tiles.shape[1]
        return more if self.causal else more // 2

    @property
    def all_keys(self) -> int:
        """The keys of all tiles."""
        return self.rows + self.tiles.shape[2] - self.tiles.shape[1]

    @cached_property
    def _largest(self) -> Tensor:
        largest = self.tiles.amax(2, keepdim=True)
        return largest.clamp(min=0.0) if self.outside else torch.where(largest.isinf(), 0.0, largest)

    @property
    def largest(self) -> Tensor:
        """The largest bias (n L, 1) of each row."""
        return self._largest.flatten(0, 1)

    @cached_property
    def _positions(self) -> Tensor:
        """exp(bias - largest)."""
        return (self.tiles - self._largest).exp_()

    @cached_property
    def _beyond(self) -> Tensor:
        """exp(0 - largest) (n, L, 1), the same for keys beyond the tile."""
        return (-self._largest).exp_()

    def sums(self, weights: Tensor) -> Tensor:
        """Sums (n L, K) of weights (keys of all tiles, K) times exp(bias - largest)."""
        with without_autocast(weights):
            sums = torch.bmm(self._positions, self._windows(weights))
        if self.outside:
            blocks = self._blocks(weights)
            beyond = _far(blocks, self.before, later=False)
            if not self.causal:
                beyond += _far(blocks, self.before, later=True)
            sums.addcmul_(self._beyond, beyond[:, None])
        return sums.flatten(0, 1)

    def gradients(self, weights: Tensor, d_sums: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the tiles and of the weights (n L, K) of rows' own tokens, those of `sums` being (n L, K)."""
        blocks = d_sums.unflatten(0, self.tiles.shape[:2])
        count, length, columns = self.tiles.shape
        d_weights = torch.zeros_like(weights)
        with without_autocast(weights):
            d_tiles = torch.bmm(blocks, self._windows(weights).mT).mul_(self._positions)
            # Windows overlap, but not what they have of one block.
            for start in range(0, columns, length):
                part = self._positions[:, :, start : start + length].mT
                d_weights[start:].unfold(0, part.shape[1], length)[:count].mT.baddbmm_(part, blocks)
            d_beyond = torch.bmm(self._beyond.mT, blocks)[:, 0] if self.outside else None
        d_blocks = self._blocks(d_weights)
        if d_beyond is not None:
            _add_far(d_blocks, d_beyond, self.before, later=False)
            if not self.causal:
                _add_far(d_blocks, d_beyond, self.before, later=True)
        return d_tiles, d_blocks.flatten(0, 1)

    def sees(self, is_key: Tensor) -> Tensor:
        """Whether each row has a key: (B, N, C), 1 at keys and else 0."""
        if self.outside:
            return is_key.cummax(1).values > 0 if self.causal else is_key.amax(1, keepdim=True) > 0
        around = (0, 0, self.before, self.all_keys - self.before - is_key.shape[1])
        beside = F.pad(is_key, around).transpose(0, 1).flatten(1)
        with without_autocast(is_key):
            counts = torch.bmm((self.tiles > -math.inf).to(is_key.dtype), self._windows(beside)).flatten(0, 1)
        seen: Tensor = counts[: is_key.shape[1]].unflatten(1, (len(is_key), -1)) > 0
        return seen.transpose(0, 1)

    def dense(self, length: int) -> Tensor:
        """All biases (N, N)."""
        count, rows, columns = self.tiles.shape
        beyond = 0.0 if self.outside else -math.inf
        bias = self.tiles.new_full((self.rows, self.all_keys), beyond)
        for n in range(count):
            bias[n * rows : (n + 1) * rows, n * rows : n * rows + columns] = self.tiles[n]
        bias = bias[:length, self.before : self.before + length]
        if self.causal:
            bias.masked_fill_(torch.ones_like(bias, dtype=torch.bool).triu(1), -math.inf)
        return bias

    def tiles_of(self, dense: Tensor) -> Tensor:
        """The entries (n, L, S) that tiles have of (N, N), zero where they reach beyond it."""
        count, rows, columns = self.tiles.shape
        extra = self.rows - len(dense)
        dense = F.pad(dense, (self.before, self.all_keys - self.before - len(dense), 0, extra))
        return torch.stack(
            [dense[start : start + rows, start : start + columns] for start in range(0, count * rows, rows)]
        )

    def double(self) -> Window:
        return Window(self.tiles.double(), self.causal, self.outside)

    def _windows(self, x: Tensor) -> Tensor:
        """Overlapping views (n, S, K) of what each tile sees."""
        views: Tensor = x.unfold(0, self.tiles.shape[2], self.tiles.shape[1]).mT
        return views

    def _blocks(self, x: Tensor) -> Tensor:
        """Views (n, L, K) of rows' own tokens."""
        own: Tensor = x[self.before : self.before + self.rows].unflatten(0, self.tiles.shape[:2])
        return own


def _far(blocks: Tensor, halo: int, later: bool) -> Tensor:
    """Sums (n, K) of blocks (n, L, K) over all tokens more than `halo` before each block, or after it."""
    count, length, _ = blocks.shape
    rest, step = halo % length, halo // length + 1
    totals, partial = blocks.sum(1), (blocks[:, rest:] if later else blocks[:, : length - rest]).sum(1)
    if later:
        totals, partial = totals.flip(0), partial.flip(0)
    sums = torch.zeros_like(totals)
    sums[step:] = partial[: max(0, count - step)]
    sums[step + 1 :] += totals[: max(0, count - step - 1)].cumsum(0)
    return sums.flip(0) if later else sums


def _add_far(d_blocks: Tensor, d_sums: Tensor, halo: int, later: bool) -> None:
    """Adds the gradient that `_far` has for the blocks, when that of its sums is (n, K)."""
    count, length, _ = d_blocks.shape
    rest, step = halo % length, halo // length + 1
    if later:
        up_to = d_sums.cumsum(0)
        d_blocks[step:, rest:] += up_to[: max(0, count - step), None]
        d_blocks[step + 1 :, :rest] += up_to[: max(0, count - step - 1), None]
    else:
        from_on = d_sums.flip(0).cumsum(0).flip(0)
        d_blocks[: max(0, count - step), : length - rest] += from_on[step:, None]
        d_blocks[: max(0, count - step - 1), length - rest :] += from_on[step + 1 :, None]
