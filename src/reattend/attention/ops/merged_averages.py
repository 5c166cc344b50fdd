"""Averages over the union of keys, from averages (..., R, B) over parts of them and their log_sums (..., 1, B)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Average = tuple[Tensor, Tensor]


def merge(parts: Sequence[Average]) -> Average:
    """The average over several parts of one shape."""
    log_sums = torch.stack([log_sum for _, log_sum in parts])
    largest = log_sums.detach().amax(0)
    shares = (log_sums - torch.where(largest.isinf(), 0.0, largest)).exp()
    total = shares.sum(0)
    seen = total > 0
    safe = torch.where(seen, total, 1.0)
    average = torch.zeros_like(parts[0][0])
    for share, (part, _) in zip(shares / safe, parts, strict=True):
        average = average + share * part
    return average, torch.where(seen, largest + safe.log(), -math.inf)


def merged(part: Average, dim: int) -> Average:
    """The average over all parts along `dim`, which goes."""
    average, log_sum = part
    largest = log_sum.detach().amax(dim, keepdim=True)
    shares = (log_sum - torch.where(largest.isinf(), 0.0, largest)).exp()
    total = shares.sum(dim, keepdim=True)
    seen = total > 0
    safe = torch.where(seen, total, 1.0)
    log_sum = torch.where(seen, largest + safe.log(), -math.inf).squeeze(dim)
    return (shares / safe * average).sum(dim), log_sum


def running(part: Average, dim: int) -> Average:
    """Averages over all parts up to each one along `dim`; no later part moves them by a bit."""
    average, log_sum = part
    length, step = average.shape[dim], 1
    while step < length:
        rest = length - step
        later = [(average.narrow(dim, start, rest), log_sum.narrow(dim, start, rest)) for start in (step, 0)]
        new_average, new_log_sum = merge(later)
        average = torch.cat([average.narrow(dim, 0, step), new_average], dim)
        log_sum = torch.cat([log_sum.narrow(dim, 0, step), new_log_sum], dim)
        step *= 2
    return average, log_sum


def padded(part: Average, dim: int, before: int, after: int) -> Average:
    """With parts of no key at the ends of `dim`."""
    average, log_sum = part
    for count, is_before in ((before, True), (after, False)):
        if count:
            shape = list(log_sum.shape)
            shape[dim] = count
            nothing = log_sum.new_full(shape, -math.inf)
            shape[-2] = average.shape[-2]
            zeros = average.new_zeros(shape)
            average = torch.cat([zeros, average] if is_before else [average, zeros], dim)
            log_sum = torch.cat([nothing, log_sum] if is_before else [log_sum, nothing], dim)
    return average, log_sum
