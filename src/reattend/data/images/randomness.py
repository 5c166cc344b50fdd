"""Augmentations of timm and torchvision draw from three global generators, which are borrowed for a moment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def borrowed_generators() -> Iterator[None]:
    """Gives back the state of Python's, NumPy's and torch's CPU generator after the block: dropout uses them."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def seed_generators(seed: int) -> None:
    """Begins all three anew; those of GPUs are left alone."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
