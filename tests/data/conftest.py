from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HEADER = "@problemName Toy\n@timeStamps false\n@univariate {univariate}\n@classLabel true {classes}\n@data\n"

WriteSet = Callable[..., Path]


@pytest.fixture
def write_set(tmp_path: Path) -> WriteSet:
    """Writes Toy_TRAIN.ts and Toy_TEST.ts from their data lines and returns the root folder."""

    def write(train: Sequence[str], test: Sequence[str], classes: str = "a b c", univariate: bool = True) -> Path:
        folder = tmp_path / "Toy"
        folder.mkdir(exist_ok=True)
        header = HEADER.format(univariate=str(univariate).lower(), classes=classes)
        for split, lines in (("TRAIN", train), ("TEST", test)):
            (folder / f"Toy_{split}.ts").write_text(header + "\n".join(lines) + "\n")
        return tmp_path

    return write


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for whole folders of tests: stand-ins take a second each to make."""
    return tmp_path_factory.mktemp("stand_ins")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reattend.data.network.reachable", lambda address: False)
