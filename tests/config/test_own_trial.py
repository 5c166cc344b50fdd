"""A mixer of one's own is called once before a run begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.conftest import MIXER
from tests.config.test_instantiate import OWN, message


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("        return x\n", "        return x[:, :1]\n", "MyMixer.forward returns a tensor of shape (2, 1, 128)"),
        ("self, spec, *, k", "self, *, k", "attention.target: the first argument of MyMixer must be the MixerSpec"),
        ("return Capabilities()", "return {}", "MyMixer.capabilities must return"),
    ],
)
def test_a_fault_is_told_with_the_other_mistakes(own_folder: Path, old: str, new: str, told: str) -> None:
    assert old in MIXER
    (own_folder / "own_mixer.py").write_text(MIXER.replace(old, new))
    text = message(*OWN, "attention.options.k=3")
    assert told in text
    assert text.startswith("1 mistake")
