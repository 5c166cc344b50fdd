"""Under what conditions something was measured."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reattend.config import compose, read
from reattend.train.devices import prepare_cpu


def prepare(device: torch.device, overrides: Sequence[str] = ()) -> str:
    """Sets threads and allocator as a run with the overrides of `trainer` among `overrides` would, and says how."""
    trainer = read(compose([o for o in overrides if o.startswith("trainer")])).trainer
    prepare_cpu(trainer)
    return setting(device, trainer.keep_freed_memory)


def setting(device: torch.device, keep_freed_memory: bool) -> str:
    """Device, threads, torch and allocator in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    kept = "kept" if keep_freed_memory else "returned to the kernel"
    return f"{torch.get_num_threads()} thread(s), torch {torch.__version__}, freed memory {kept}"
