"""What all tests share."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

# A shell has SIGINT ignored in what it starts in the background, and so would all commands of these tests.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def forget_compiled_code() -> Iterator[None]:
    """No test counts towards the recompilations that the compiler allows the next one."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
