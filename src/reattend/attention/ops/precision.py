"""Keeping a computation in the precision that it is given."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Turns autocast off on the device of `x`; tensors without content ("meta") have none, and torch refuses to ask."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
