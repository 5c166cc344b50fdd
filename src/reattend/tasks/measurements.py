"""What mixers measure of themselves while a model trains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reattend.attention.contract import Losses


def split_measurements(losses: Losses) -> tuple[Losses, Losses]:
    """What is to be minimised, and what is to be logged only."""
    measured = {name: value for name, value in losses.items() if "/" in name}
    return {name: value for name, value in losses.items() if name not in measured}, measured


class Measurements:
    """Running means over samples, by name.

    Attributes:
        sums: for each name the sum of values and the number of samples, (2,) in float64.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, measured: Losses, weight: Tensor) -> None:
        """Adds values (B,) of samples of `weight` (B,)."""
        for name, values in measured.items():
            wide = weight.detach().double()
            sums = torch.stack([values.detach().double() @ wide, wide.sum()])
            known = self.sums.get(name)
            self.sums[name] = sums if known is None else known.to(sums.device) + sums

    def take(self, reduce: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The means, and starts anew.

        Args:
            reduce: adds a tensor up over all processes, which have the same names.
        """
        names = sorted(self.sums)
        if not names:
            return {}
        sums = reduce(torch.stack([self.sums[name] for name in names]))
        self.sums = {}
        return dict(zip(names, (sums[:, 0] / sums[:, 1]).tolist(), strict=True))
