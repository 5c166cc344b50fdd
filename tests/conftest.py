"""What all tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def forget_compiled_code() -> Iterator[None]:
    """No test counts towards the recompilations that the compiler allows the next one."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
