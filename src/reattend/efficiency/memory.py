"""Peak memory of one call."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

_ALLOCATION = "[memory]"  # what the profiler names each allocation and each release


def peak_bytes(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Largest number of bytes of tensors that `call` held at once, above those that were there before it.

    On a CPU every allocation and release of torch's allocator is followed, so the same call gives the same number, and
    memory that a library takes for itself is not seen. On a GPU it is the allocator's own peak.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    gc.collect()  # or garbage is released in the middle, of which the profiler does not know the size
    # Read when the profiler first starts; without it every use writes lines to the terminal.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    results = profiler.profiler
    assert results is not None
    assert results.kineto_results is not None
    changes = [(e.start_ns(), e.nbytes()) for e in results.kineto_results.events() if e.name() == _ALLOCATION]
    held = peak = 0
    for _, change in sorted(changes, key=lambda time_and_bytes: time_and_bytes[0]):
        held += change
        peak = max(peak, held)
    return peak
