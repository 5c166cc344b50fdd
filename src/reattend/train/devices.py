"""The devices of a run, and whether the installed torch can use them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from reattend.config.schema import TrainerConfig
from reattend.errors import ReattendError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def accelerator(config: TrainerConfig) -> str:
    """ "gpu" or "cpu".

    Raises:
        ReattendError: no GPU, too few of them, one that the installed torch has no code for, or a precision that it
            does not have.
    """
    if config.accelerator == "cpu" or (config.accelerator == "auto" and not torch.cuda.is_available()):
        if config.precision == "16-mixed":
            raise ReattendError("trainer.precision=16-mixed needs a GPU; on a CPU use bf16-mixed or 32-true.")
        return "cpu"
    if not torch.cuda.is_available():
        raise ReattendError(
            f"trainer.accelerator=gpu, but torch {torch.__version__} sees no CUDA device. Use trainer=cpu, or install a"
            " torch build for the driver of this machine."
        )
    if torch.cuda.device_count() < config.devices:
        raise ReattendError(
            f"trainer.devices={config.devices}, but this machine shows {torch.cuda.device_count()} GPU(s);"
            f" use trainer.devices={torch.cuda.device_count()}."
        )
    for index in range(config.devices):
        _check_architecture(index, config.precision)
    return "gpu"


def has_code_for(major: int, minor: int, architectures: Sequence[str]) -> bool:
    """Whether a build for `architectures` ("sm_75", ...) runs on a GPU of capability `major`.`minor`.

    Machine code runs on its own minor version and later ones of the same major, not on earlier ones: that for sm_75
    does not run on a V100 (sm_70).
    """
    numbers = [int(arch[3:]) for arch in architectures if arch.startswith("sm_") and arch[3:].isdecimal()]
    return any(number // 10 == major and number % 10 <= minor for number in numbers)


def _check_architecture(index: int, precision: str) -> None:
    major, minor = torch.cuda.get_device_capability(index)
    name, built_for = torch.cuda.get_device_name(index), torch.cuda.get_arch_list()
    if not has_code_for(major, minor, built_for):
        raise ReattendError(
            f"GPU {index} ({name}) is sm_{major}{minor}; torch {torch.__version__} is built for {' '.join(built_for)}."
            " A V100 (sm_70) needs a CUDA 12.6 build of torch 2.14 or older: see README, 'GPUs'."
        )
    if precision == "bf16-mixed" and major < 8:
        raise ReattendError(f"GPU {index} ({name}) has no bfloat16: use trainer.precision=16-mixed.")


def prepare_cpu(config: TrainerConfig) -> None:
    """Sets the number of threads, and lets glibc keep freed blocks instead of returning them to the kernel."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.keep_freed_memory and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def forget_peaks() -> None:
    """Lets the peak memory that the next run reports be its own, not that of the runs before it in this process."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak begins anew from what is held now
