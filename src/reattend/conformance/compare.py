"""Comparing tensors, and telling where they differ."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def relative_error(got: Tensor, wanted: Tensor, floor: float = 0.0) -> float:
    """Largest difference relative to the largest wanted value, or to `floor` if that is larger; NaN counts as inf."""
    if not wanted.numel():
        return 0.0
    difference = _number((got.double() - wanted.double()).abs().max())
    scale = max(_number(wanted.double().abs().max()), floor)
    return difference / scale if scale else difference


def worst(got: Tensor, wanted: Tensor, what: str = "the output") -> str:
    """Where (B, N, ...) differs most and by how much, in words."""
    by_token = (got.detach().double() - wanted.detach().double()).abs().nan_to_num(nan=math.inf).flatten(2).amax(2)
    sample, token = divmod(int(by_token.argmax()), by_token.shape[1])
    largest = wanted.detach().double().abs().max().item()
    place, moved = f"{what} of token {token} in sample {sample}", by_token.max().item()
    if math.isinf(moved):
        return f"{place} is not finite"
    return f"{place} moves by {moved:.2g} (largest value {largest:.2g})"


def not_finite(tensors: Iterable[tuple[str, Tensor | None]]) -> str:
    """Names of the tensors that hold NaN or infinity, with what they hold; "" if none does."""
    found: dict[str, list[str]] = {}
    for name, tensor in tensors:
        if tensor is not None and not tensor.isfinite().all():
            found.setdefault("NaN" if tensor.isnan().any() else "infinity", []).append(name)
    return "; ".join(f"{kind} in {listed(names)}" for kind, names in found.items())


def listed(names: Iterable[str], most: int = 4) -> str:
    """The names with commas between, the number of others behind if there are many."""
    all_names = list(names)
    more = len(all_names) - most
    return ", ".join(all_names[:most]) + (f" and {more} more" if more > 0 else "")


def _number(value: Tensor) -> float:
    number = float(value.detach())
    return math.inf if math.isnan(number) else number


def same_bits(got: Tensor, wanted: Tensor) -> bool:
    """Whether two tensors are equal to the last bit, NaN equal to NaN."""
    return got.shape == wanted.shape and bool(torch.equal(got.nan_to_num(), wanted.nan_to_num()))
