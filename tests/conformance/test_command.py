"""The command `scripts/check_attention.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reattend.attention import MixerFactory
from reattend.conformance import Report
from reattend.conformance.command import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LEAKING = """
import torch
from torch import nn
from reattend.attention import Capabilities, Mixer

class Leaking(Mixer):
    def __init__(self, spec, *, gain: float = 1.0):
        super().__init__()
        self.proj = nn.Linear(spec.dim, spec.dim)
        self.gain = gain

    @classmethod
    def capabilities(cls, **options):
        return Capabilities()

    def forward(self, x, padding_mask=None, context=None, context_mask=None):
        return self.proj(x) + self.gain * x.mean(1, keepdim=True)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the README's mixer in my_attention.py and one that sees padding in leaking.py."""
    (source,) = re.findall(r"```python\n(import torch\n.*?\(Mixer\).*?)```", README, flags=re.DOTALL)
    (tmp_path / "my_attention.py").write_text(source)
    (tmp_path / "leaking.py").write_text(LEAKING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("my_attention", "leaking"):
        sys.modules.pop(name, None)


def test_the_readmes_mixer_passes(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attention=custom", "attention.target=my_attention.MeanPooling", "scaling=false"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"MeanPooling: all \d+ checks passed, \d+ do not apply", lines[0])
    assert lines[1].startswith("my_attention.py:7 ")
    assert "544 parameters" in lines[3]


def test_a_fault_is_told_and_written_and_the_exit_code_is_one(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["attention=custom", "attention.target=leaking.Leaking", "attention.options.gain=0.5"]
    assert main([*asked, "scaling=false", "page=pages/leaking.md", "dim=12", "heads=3", "length=9"]) == 1
    text, page = capsys.readouterr().out, (own / "pages/leaking.md").read_text()
    assert "FAILED  The content of padding reaches no real token  [padding.content]" in text
    assert re.search(r"look at +Leaking.forward \(leaking.py:16\): mask padded tokens out", text)
    assert "built for dim 12, 3 heads, up to 9 tokens, not causal" in text
    assert page.startswith("# Leaking: 1 of ")
    assert "## Failed: The content of padding reaches no real token" in page
    assert "pages/leaking.md" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "python scripts/check_attention.py attention=NAME"),
        (["attention=sofmax"], "Did you mean 'softmax'?"),
        (["attention=softmax", "length=2"], "length: expected int at least 4, found 2"),
        (["attention=softmax", "causal=maybe"], "causal: 'maybe' is not one of auto, True, False"),
        (["attention=softmax", "lenght=9"], "lenght=9: there is no option 'lenght'. Did you mean 'length'?"),
        (["attenton=softmax"], "Did you mean 'attention'?"),
        (["attention=conv2d", "length=4", "prefix_tokens=4"], "prefix_tokens=4 leaves none of length=4 tokens"),
        (["attention=softmax", "length=24", "prefix_tokens=30"], "prefix_tokens=30 leaves none of length=24 tokens"),
        (["attention=softmax", "page=/proc/none/page.md"], "page=/proc/none/page.md cannot be written"),
        (["attention=softmax", "page=/"], "page=/ cannot be written: it is a folder"),
        (["attention=softmax", "heads=3"], "num_heads=3 does not divide dim=16"),
        (["attention=sh", "causal=true"], "it is not causal: a pooled key averages tokens of the future"),
        (["attention=custom", "attention.target=nowhere.Mine"], "there is no module 'nowhere'"),
        (["attention=custom"], "attention.target"),
    ],
)
def test_a_mistake_in_the_command_is_answered_and_the_exit_code_is_two(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert not captured.out


def test_a_page_that_was_there_stays_whole(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "page.md").write_text("the old page")

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fails)
    asked = ["attention=custom", "attention.target=leaking.Leaking", "scaling=false", "length=4", "page=page.md"]
    assert main(asked) == 2
    assert "page.md cannot be written" in capsys.readouterr().err
    assert (own / "page.md").read_text() == "the old page"
    assert sorted(path.name for path in own.glob("*page*")) == ["page.md"]


def test_what_a_mechanism_prints_is_told_once(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talking = LEAKING.replace("        return self.proj", '        print("mean of", x.shape)\n        return self.proj')
    (own / "leaking.py").write_text("print('imported')" + talking)
    assert main(["attention=custom", "attention.target=leaking.Leaking", "scaling=false", "length=4"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"it prints: \d+ line\(s\), left out here, the first 'imported'", text)
    assert not re.search(r"^(imported|mean of)", text, flags=re.MULTILINE)


def test_attention_dropout_is_left_out_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def seen(kind: MixerFactory, *_: Any, **__: Any) -> Report:
        rates.append(kind.options["dropout"])
        return Report("", "", "", [], 0, None, [], 0.0)

    monkeypatch.setattr("reattend.conformance.command.run", seen)
    main(["attention=softmax"])
    main(["attention=softmax", "recipe.attention_dropout=0.2"])
    assert rates == [0.0, 0.2]


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    asked = [sys.executable, str(ROOT / "scripts/check_attention.py"), "attention=softmax", "length=4", "scaling=false"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*asked, "causal=false"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_kind_of_layer_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["attention=layers", "attention.default=linear", "attention.at={0: bn}", "scaling=false", "causal=false"]
    assert main(asked) == 0
    assert re.findall(r"(layer 0|other layers): attention=layers", capsys.readouterr().out) == [
        "other layers",
        "layer 0",
    ]


def test_a_grid_is_made_for_those_that_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attention=conv2d", "scaling=false", "prefix_tokens=1", "length=13"]) == 0
    assert "built for dim 16, 2 heads, grid 3x4, 1 prefix, not causal" in capsys.readouterr().out
    assert main(["attention=softmax", "scaling=false", "grid=2x3", "causal=true"]) == 0
    assert "built for dim 16, 2 heads, grid 2x3, causal" in capsys.readouterr().out
