from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests of this folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(stand_ins))
