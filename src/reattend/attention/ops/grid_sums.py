"""Sums over a grid, channel by channel: those of a filter around each place, and of all that it does not reach.

No sum is a difference: sums of positive numbers lose no digit, however far apart these lie. Grids have three extents,
the first ones 1 on a sequence or an image, and filters as many, each odd and centred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from reattend.attention.ops.precision import without_autocast

# torch's gradient of the filters of a depth-wise convolution is slow on a CPU where they have more taps. The forward
# pass gives it too, the output's gradient in the filter's place, samples as further channels. Measured on one thread
# with 224 channels, in ms: 14 x 14, 7 x 7 taps 9.9 and 8.3; 24 x 24, 11 x 11 taps 18 and 5.6, 15 x 15 taps 110 and 6.8;
# but 24 x 24, 3 x 3 taps 0.4 and 1.7.
FEW_TAPS = 9
# With more columns of padding than that the forward pass falls to another form too, unless they are there already: 14 x
# 14, 15 x 15 taps, 16 samples 77 and 11 ms. With fewer it is the other way around, 6.1 and 8.3 with 11 x 11.
WIDEST = 6
# Lines up to so many places are added one to another, which is 6 times as fast as `cumsum` at 14 places.
LONG = 64


def filter_sums(x: Tensor, filters: Tensor) -> Tensor:
    """y_n(c) = sum_o f_c(o) x_{n+o}(c), zeros around.

    Args:
        x: (B, n_1, n_2, n_3, C).
        filters: (C, s_1, s_2, s_3).
    """
    if filters.shape[1] == 1:
        return _convolved(x, filters[:, 0])
    y = torch.zeros_like(x)
    for tap, rows, seen in _layers(x.shape[1], filters.shape[1]):
        y[:, rows] += _convolved(x[:, seen], filters[:, tap])
    return y


def filter_gradient(d_y: Tensor, x: Tensor, kernel: Sequence[int]) -> Tensor:
    """The gradient of the filters of `filter_sums`, d_f_c(o) = sum_bn d_y_n(c) x_{n+o}(c), (C, s_1, s_2, s_3)."""
    gradient = x.new_zeros(x.shape[4], *kernel)
    for tap, rows, seen in _layers(x.shape[1], kernel[0]):
        gradient[:, tap] = _correlated(d_y[:, rows], x[:, seen], kernel[1:])
    return gradient


def outside_sums(x: Tensor, kernel: Sequence[int]) -> Tensor:
    """y_n(c) = sum of x_m(c) over all m that a filter of `kernel` taps around n does not reach; its own adjoint.

    For each axis these are the places that are near along the axes before, beyond the filter along this one, and
    anywhere along those after.

    Args:
        x: (B, n_1, n_2, n_3, C).
        kernel: (s_1, s_2, s_3).
    """
    y = torch.zeros_like(x)
    for dim, size in enumerate(kernel, 1):
        reach = min(size // 2, x.shape[dim] - 1)
        if x.shape[dim] > reach + 1:
            later = list(range(dim + 1, 4))
            y += _beyond(x.sum(later, keepdim=True) if later else x, dim, reach)
        if reach:
            x = _near(x, dim, reach)
    return y


def _layers(extent: int, taps: int) -> Iterator[tuple[int, slice, slice]]:
    """Taps along the first axis, the places whose sums they take part in, and those that they meet."""
    for tap in range(taps):
        offset = tap - taps // 2
        if abs(offset) < extent:
            rows, seen = (slice(max(0, shift), extent + min(0, shift)) for shift in (-offset, offset))
            yield tap, rows, seen


def _convolved(x: Tensor, filters: Tensor) -> Tensor:
    """(B, n_1, n_2, n_3, C) with filters (C, s_2, s_3)."""
    image = x.flatten(0, 1).permute(0, 3, 1, 2)
    padding = [size // 2 for size in filters.shape[1:]]
    # A backward pass may run under autocast even where the forward pass was kept out of it.
    with without_autocast(x):
        y = F.conv2d(image, filters[:, None], padding=padding, groups=len(filters))
    return y.permute(0, 2, 3, 1).reshape(x.shape)


def _correlated(d_y: Tensor, x: Tensor, kernel: Sequence[int]) -> Tensor:
    """The gradient (C, s_2, s_3) of the filters of `_convolved`."""
    padding = [size // 2 for size in kernel]
    d_y, x = d_y.flatten(0, 1), x.flatten(0, 1)
    samples, _, _, channels = x.shape
    with without_autocast(x):
        if kernel[0] * kernel[1] <= FEW_TAPS:
            images = d_y.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2)
            filters, ones = x.new_empty(channels, 1, *kernel), [1, 1]
            few: Tensor = torch.ops.aten.convolution_backward(
                *images, filters, None, ones, padding, ones, False, [0, 0], channels, [False, True, False]
            )[1]
            return few[:, 0]
        filters, image = (y.permute(1, 2, 0, 3).flatten(2) for y in (d_y, x))
        if padding[1] > WIDEST:
            image, padding = F.pad(image, (0, 0, padding[1], padding[1])), [padding[0], 0]
        groups = samples * channels
        found = F.conv2d(
            image.permute(2, 0, 1)[None], filters.permute(2, 0, 1)[:, None], padding=padding, groups=groups
        )
    return found.view(samples, channels, *kernel).sum(0)


def _beyond(x: Tensor, dim: int, reach: int) -> Tensor:
    """Sums along `dim` over the places further away than `reach`."""
    rest = x.shape[dim] - reach - 1
    y = torch.zeros_like(x)
    if rest > LONG:
        torch.cumsum(x.narrow(dim, 0, rest), dim, out=y.narrow(dim, reach + 1, rest))
        y.narrow(dim, 0, rest).add_(x.narrow(dim, reach + 1, rest).flip(dim).cumsum(dim).flip(dim))
        return y
    lines, sums = x.unbind(dim), y.unbind(dim)
    for n in range(rest):
        torch.add(sums[n + reach], lines[n], out=sums[n + reach + 1])
    after = torch.zeros_like(lines[0])
    for n in range(rest - 1, -1, -1):
        sums[n].add_(after.add_(lines[n + reach + 1]))
    return y


def _near(x: Tensor, dim: int, reach: int) -> Tensor:
    """Sums along `dim` over the places up to `reach` away."""
    image = x.flatten(dim + 1).flatten(0, dim - 1).unsqueeze(2).permute(0, 3, 1, 2)
    y = F.avg_pool2d(image, (2 * reach + 1, 1), 1, (reach, 0), divisor_override=1)
    return y.permute(0, 2, 3, 1).reshape(x.shape)
