"""Whether the installed torch has code for a GPU."""

from __future__ import annotations

import pytest

from reattend.train.devices import has_code_for

CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
CUDA_12_6 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]


@pytest.mark.parametrize(
    ("capability", "build", "runs"),
    [
        ((7, 0), CUDA_13, False),
        ((7, 0), CUDA_12_6, True),
        ((7, 5), CUDA_13, True),
        ((8, 9), CUDA_13, True),
        ((10, 0), CUDA_13, True),
        ((10, 0), CUDA_12_6, False),
    ],
    ids=str,
)
def test_code_runs_on_its_minor_version_and_later_ones(
    capability: tuple[int, int], build: list[str], runs: bool
) -> None:
    assert has_code_for(*capability, build) is runs
