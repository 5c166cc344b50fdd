"""Scaled heads: keys and values of a head are downsampled, queries keep their length. Attention-SH, and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.attention.contract import MixerSpec
from reattend.attention.slots import HeadGroup


class ScaledHeads(nn.Module):
    """Attention-SH (primal-dual paper, Eqn 25): head s attends to N_s = ceil(N / scale_s) keys and values.

    Windows of `scale` tokens follow the prefix tokens, which stay as they are. `mean` averages the real tokens of a
    window, the last window too where it is short; `stride` picks its first real token. `conv` is a depth-wise
    convolution with a stride of its size, of keys and of values,

        y_c = (s / n) sum_t w_c(t) x_c(t)     over the n real ones of the window's s tokens, for each feature c,

    whose filters are learned and start at 1 / s, which is `mean`. A window without a real token is masked out. A factor
    larger than the sequence leaves one window. With `mean` a window's value is an average of tokens, so weights on
    windows are weights on tokens.

    Args:
        spec: the place it is built for.
        scales: downsampling factor of each head, or one for all heads; None leaves all heads whole.
        pooling: how a window becomes one key and one value.
    """

    def __init__(
        self,
        spec: MixerSpec,
        *,
        scales: int | Sequence[int] | None = None,
        pooling: Literal["mean", "stride", "conv"] = "mean",
    ) -> None:
        super().__init__()
        scales = 1 if scales is None else scales
        self.scales = [scales] * spec.num_heads if isinstance(scales, int) else list(scales)
        if pooling == "conv":  # A filter beyond the sequence would never be used whole.
            self.scales = [min(scale, max(1, spec.max_length - spec.prefix_tokens)) for scale in self.scales]
        self.pooling = pooling
        self.groups = [
            HeadGroup(
                tuple(head for head, other in enumerate(self.scales) if other == scale), scale, spec.prefix_tokens
            )
            for scale in dict.fromkeys(self.scales)
        ]
        if pooling == "conv":
            # By scale, (heads, s, d): a filter for each feature of the heads of that scale.
            shapes = {str(g.scale): (len(g.heads), g.scale, spec.dim // spec.num_heads) for g in self.groups}
            shapes.pop("1", None)
            self.key_filters, self.value_filters = (
                nn.ParameterDict({name: torch.full(shape, 1 / shape[1]) for name, shape in shapes.items()})
                for _ in range(2)
            )

    def in_order(self, x: Tensor, dim: int) -> Tensor:
        """The heads of all groups, one group after the other in `dim`, in the order of the layer."""
        grouped = [head for group in self.groups for head in group.heads]
        return take(x, tuple(grouped.index(head) for head in range(len(grouped))), dim)

    def pool(
        self, k: Tensor, v: Tensor, key_mask: Tensor | None, scale: int, prefix: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values (B, H, M, D) and mask (B, M) of one group, downsampled to (B, H, M', D) and (B, M').

        `prefix` is the number of tokens in front that are kept.
        """
        if scale == 1 or (k.shape[2] <= prefix and self.pooling != "conv"):
            return k, v, key_mask
        prefix = min(prefix, k.shape[2])
        if self.pooling != "conv":
            scale = min(scale, k.shape[2] - prefix)
        if self.pooling == "conv":
            # Without a window too, so that its filters have a gradient.
            filters = self.key_filters[str(scale)], self.value_filters[str(scale)]
            k, v = (_convolve_windows(x, f, key_mask, prefix) for x, f in zip((k, v), filters, strict=True))
        elif key_mask is None:
            return self._pool_all(k, scale, prefix), self._pool_all(v, scale, prefix), None
        else:
            # float32 at least: a third is no half-precision number.
            share = self.shares(key_mask, scale, prefix, torch.promote_types(k.dtype, torch.float32))
            k, v = (_sum_windows(x * share[:, None, :, None], scale, prefix).to(x.dtype) for x in (k, v))
        if key_mask is not None:
            key_mask = _sum_windows(key_mask[:, None, :, None], scale, prefix)[:, 0, :, 0] > 0
        return k, v, key_mask

    def _pool_all(self, x: Tensor, scale: int, prefix: int) -> Tensor:
        """Windows of a sequence without padding, (B, H, M, D) to (B, H, M', D), without a copy of the input."""
        tokens = x[:, :, prefix:]
        whole = tokens.shape[2] // scale * scale
        if self.pooling == "stride":
            parts = [tokens[:, :, ::scale]]
        else:
            parts = [tokens[:, :, :whole].unflatten(2, (whole // scale, scale)).mean(3)] if whole else []
            if whole < tokens.shape[2]:
                parts.append(tokens[:, :, whole:].mean(2, keepdim=True))
        if prefix:
            parts.insert(0, x[:, :, :prefix])
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def shares(self, key_mask: Tensor, scale: int, prefix: int, dtype: torch.dtype) -> Tensor:
        """Share (B, M) of each token in the key and value of its window; zero at padding."""
        real = key_mask[:, None, :, None].to(dtype)
        scale = min(scale, max(1, real.shape[2] - prefix))
        tokens = F.pad(real[:, :, prefix:], (0, 0, 0, -(real.shape[2] - prefix) % scale))
        windows = tokens.unflatten(2, (tokens.shape[2] // scale, scale))
        if self.pooling == "mean":
            share = windows / windows.sum(3, keepdim=True).clamp(min=1)
        else:
            share = windows * (windows.cumsum(3) == 1)
        share = share.flatten(2, 3)[:, :, : real.shape[2] - prefix]
        return torch.cat([real[:, :, :prefix], share], dim=2)[:, 0, :, 0]

    def spread(self, weights: Tensor, key_mask: Tensor, scale: int, prefix: int) -> Tensor:
        """Weights on windows (B, H, N, M') as the equal weights on tokens (B, H, N, M)."""
        length = key_mask.shape[1]
        if scale == 1 or length <= prefix:
            return weights
        positions = torch.arange(length, device=weights.device)
        window = torch.where(positions < prefix, positions, prefix + (positions - prefix).clamp(min=0) // scale)
        return weights[..., window] * self.shares(key_mask, scale, prefix, weights.dtype)[:, None, None, :]

    @staticmethod
    def num_windows(length: int, scale: int, prefix: int) -> int:
        """Number of keys that `length` keys become."""
        return length if length <= prefix else prefix - (prefix - length) // scale


def _windows(x: Tensor, scale: int, prefix: int) -> Tensor:
    """(B, H, M, D) to (B, H, M', scale, D), zeros after the last token."""
    tokens = F.pad(x[:, :, prefix:], (0, 0, 0, -(x.shape[2] - prefix) % scale))
    windows: Tensor = tokens.unflatten(2, (tokens.shape[2] // scale, scale))
    return windows


def _sum_windows(x: Tensor, scale: int, prefix: int) -> Tensor:
    windows = _windows(x, scale, prefix).sum(3)
    return torch.cat([x[:, :, :prefix], windows], dim=2) if prefix else windows


def _convolve_windows(x: Tensor, filters: Tensor, key_mask: Tensor | None, prefix: int) -> Tensor:
    """`pooling="conv"` of x (B, H, M, D) with filters (H, s, D), to (B, H, M', D)."""
    scale = filters.shape[1]
    real = torch.ones_like(x[:1, :1, :, :1]) if key_mask is None else key_mask[:, None, :, None].to(x.dtype)
    if key_mask is not None:
        x = x.masked_fill(~key_mask[:, None, :, None], 0.0)
    # float32 at least, as the filters are under autocast.
    sums = (_windows(x, scale, prefix) * filters[:, None]).sum(3)
    counts = _windows(real.to(sums.dtype), scale, prefix).sum(3).clamp(min=1)
    pooled = (sums * (scale / counts)).to(x.dtype)
    return torch.cat([x[:, :, :prefix], pooled], dim=2) if prefix else pooled


def take(x: Tensor, indices: tuple[int, ...], dim: int) -> Tensor:
    """`x` at `indices` of `dim`: a view where they are consecutive."""
    if indices == tuple(range(indices[0], indices[0] + len(indices))):
        return x.narrow(dim, indices[0], len(indices))
    return torch.cat([x.narrow(dim, index, 1) for index in indices], dim)
