from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stand_ins")


@pytest.fixture(autouse=True)
def _own_cache(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests of this folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(stand_ins))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reattend.data.images.small.reachable", lambda address: False)
