"""What tests of tables share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reattend.tables import results


@pytest.fixture(scope="session", autouse=True)
def without_exported_results() -> Iterator[None]:
    """Finished runs are those that a test makes, not those that this repository shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "EXPORTED", Path("no", "exported", "runs"))
        yield
