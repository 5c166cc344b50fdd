from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MIXER = """
from reattend.attention import Capabilities, Mixer


class MyMixer(Mixer):
    def __init__(self, spec, *, k: int = 1, rate: float = 0.5):
        super().__init__()
        self.k = k

    @classmethod
    def capabilities(cls, **options):
        return Capabilities()

    @classmethod
    def problems(cls, spec, **options):
        return ["k is thirteen"] if options.get("k") == 13 else super().problems(spec, **options)

    def forward(self, x, padding_mask=None, context=None, context_mask=None):
        return x


class NoMixer:
    pass


number = 3
"""


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with modules `own_mixer`, `own_broken` and `own_unmet` that are not on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "own_mixer.py").write_text(MIXER)
    (tmp_path / "own_broken.py").write_text("x = 1 +\n")
    (tmp_path / "own_unmet.py").write_text("import a_module_that_nobody_has\n")
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
