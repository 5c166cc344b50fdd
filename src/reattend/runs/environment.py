"""`environment.json`: where and with which code a run was made."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from reattend.runs.files import write_json

FILE = "environment.json"
PACKAGES = (
    "reattend",
    "torch",
    "torchvision",
    "pytorch-lightning",
    "torchmetrics",
    "timm",
    "hydra-core",
    "omegaconf",
    "numpy",
    "pandas",
    "scipy",
    "sktime",
    "datasets",
    "wandb",
    "tensorboard",
)
_CODE = ("src", "configs")  # folders of the repository
_CODE_FILES = (".py", ".yaml")  # others, data say, may be huge
_VARIABLE_PREFIXES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "OMP_", "MKL_", "CUDA_VISIBLE_DEVICES", "CUBLAS_")


def snapshot(own_code: Sequence[Path] = ()) -> dict[str, Any]:
    """Machine, versions, threads, GPUs, allocator settings and the state of the code's repository.

    Args:
        own_code: files of a user's own that the run is made with.
    """
    import torch

    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "versions": versions(),
        "git": git(Path(__file__).parent, own_code),
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(_VARIABLE_PREFIXES)},
    }


def write_environment(folder: Path, own_code: Sequence[Path] = ()) -> dict[str, Any]:
    """Writes the snapshot into a run's folder and returns it."""
    content = snapshot(own_code)
    write_json(folder / FILE, content)
    return content


def versions() -> dict[str, str]:
    """Of Python and of the installed packages that can move a number, without importing them."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """The processor's name; the architecture where the system does not tell more."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def git(folder: Path, own_code: Sequence[Path] = ()) -> dict[str, Any] | None:
    """Commit of the repository that `folder` belongs to, and what a run is made with that differs from it.

    That is every changed file that the repository knows, and new files in its folders src and configs and among
    `own_code`. Other new files are not used.

    Returns:
        None outside a repository, or where it ignores `folder` (installed code in a virtual environment). Else
        `commit` (None before the first), `dirty`, and `diff_sha256` over the difference and new code files.
    """
    if _git(folder, "rev-parse", "--is-inside-work-tree") is None:
        return None
    if _git(folder, "check-ignore", "--quiet", ".") is not None:
        return None
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    root = Path((_git(folder, "rev-parse", "--show-toplevel") or b".").decode().strip())
    changes = _git(root, "status", "--porcelain", "--untracked-files=no") or b""
    used = [f":/{name}" for name in _CODE] + [str(path) for path in own_code if path.is_relative_to(root)]
    listed = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *used) or b""
    new = sorted(root / name for name in listed.decode().split("\0") if Path(name).suffix in _CODE_FILES)
    return {
        "commit": commit.decode().strip() if commit else None,
        "dirty": bool(changes or new),
        "diff_sha256": _diff_checksum(root, new) if changes or new else None,
    }


def commit_label(state: dict[str, Any] | None) -> str | None:
    """What `git` found, in one word: the commit, with "+changes" if files differ from it."""
    if not state or not state["commit"]:
        return None
    return f"{state['commit']}+changes" if state["dirty"] else str(state["commit"])


def _diff_checksum(root: Path, new: Sequence[Path]) -> str:
    digest = hashlib.sha256(_git(root, "diff", "HEAD", "--binary") or b"")
    for path in new:
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What the command prints; None if it fails, or git is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
