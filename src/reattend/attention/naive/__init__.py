"""Each mechanism as its formula, in float64 and as plainly as possible: the oracle of the tests.

Nothing here shares code with the mechanisms; modules have the names of those they are twins of.
"""

from __future__ import annotations

import importlib

from torch import Tensor

from reattend.attention.contract import Mixer


def forward(
    mixer: Mixer,
    x: Tensor,
    padding_mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """What one of our mixers computes without dropout, in float64, from its own parameters; by its module's twin."""
    name = type(mixer).__module__.removeprefix("reattend.attention.")
    twin = importlib.import_module(f"{__name__}.{name}")
    output: Tensor = twin.forward(mixer, x, padding_mask, context, context_mask)
    return output
