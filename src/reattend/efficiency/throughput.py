"""How fast devices are at training small models, roughly."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

# Dense peaks of the SXM cards in float32 without tensor cores, in operations a second, as the makers' data sheets state
# them (V100 and A100 of 2020, H100 of 2023).
PEAKS: Mapping[str, float] = {"V100": 15.7e12, "A100": 19.5e12, "H100": 67e12}
# What of the peak the matrix products of a model of some hundred channels reach, and what a leaf module costs a step in
# Python and in launching kernels, forward, backward and update together. Both are guesses within a factor of two.
UTILISATION = 0.3
SECONDS_PER_MODULE = 1e-4
_LEFT_OUT = "start, checkpoints and calls of evaluation are not counted"


@dataclass(frozen=True)
class Speed:
    """Operations a second in training, and where the figure comes from."""

    flops_per_second: float
    seconds_per_module: float
    source: str

    def seconds(self, flops: float, steps: int, modules: int) -> float:
        """Of `steps` updates with `flops` operations in all; the slower of computing and calling counts."""
        return max(flops / self.flops_per_second, steps * modules * self.seconds_per_module)


def stated(device: str) -> Speed:
    """Of one GPU of that kind."""
    return Speed(
        UTILISATION * PEAKS[device], SECONDS_PER_MODULE, f"a rough lower bound, from the stated peak: {_LEFT_OUT}"
    )


@cache
def probed() -> Speed:
    """Of this machine's CPU with torch's threads, by some products of matrices of 512: a few tenths of a second."""
    # Imported here: figures of finished runs and of GPUs need no torch.
    import torch

    a, b = torch.randn(512, 512), torch.randn(512, 512)
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return Speed(
        UTILISATION * 2 * 512**3 / best,
        SECONDS_PER_MODULE,
        f"a rough lower bound, from a product of matrices: {_LEFT_OUT}",
    )
