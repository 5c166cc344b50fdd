"""Peak memory of calls whose allocations are known."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from reattend.efficiency.memory import peak_bytes

MEGABYTE = 2**20


def _bytes(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8)


def test_the_peak_of_known_allocations_is_exact() -> None:
    def call() -> None:
        first = _bytes(3 * MEGABYTE)
        del first
        kept = _bytes(2 * MEGABYTE)
        both = _bytes(5 * MEGABYTE)
        del both, kept

    assert peak_bytes(call) == 7 * MEGABYTE


def test_what_was_there_before_does_not_count() -> None:
    before = [_bytes(50 * MEGABYTE)]

    def call() -> None:
        before.clear()
        _bytes(MEGABYTE)

    assert peak_bytes(call) == MEGABYTE


def test_what_the_call_leaves_behind_counts() -> None:
    kept: list[Tensor] = []
    assert peak_bytes(lambda: kept.append(_bytes(MEGABYTE))) == MEGABYTE


@pytest.mark.parametrize("backward", [False, True])
def test_gradients_count(backward: bool) -> None:
    layer = nn.Linear(256, 256, bias=False)
    x = torch.randn(4, 256)

    def call() -> None:
        y = layer(x)
        if backward:
            y.sum().backward()

    layer.zero_grad(set_to_none=True)
    assert (peak_bytes(call) > 4 * 256 * 256) is backward


def test_the_same_call_gives_the_same_number() -> None:
    x = torch.randn(64, 64)
    assert len({peak_bytes(lambda: (x @ x).softmax(-1).sum()) for _ in range(3)}) == 1


def test_nothing_is_written_to_the_terminal() -> None:
    code = "import torch; from reattend.efficiency.memory import peak_bytes; peak_bytes(lambda: torch.ones(9))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.gpu
def test_the_peak_on_a_gpu_is_exact() -> None:
    def call() -> None:
        both = [torch.empty(2 * MEGABYTE, dtype=torch.uint8, device="cuda") for _ in range(2)]
        del both

    assert peak_bytes(call, "cuda") == 4 * MEGABYTE
