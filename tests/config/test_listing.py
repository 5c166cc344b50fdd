"""The command `scripts/list.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from reattend.config import config_dir
from reattend.config.listing import main, rows


def test_everything_that_matters_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for group in ("attention", "task", "backbone"):
        start = lines.index(group)
        names = {line.split("\t")[1] for line in lines[start + 1 :] if line.startswith("\t")}
        folder = config_dir() / group
        assert {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")} <= names


def test_each_attention_has_a_summary_and_its_capabilities() -> None:
    table = {row["name"]: row for row in rows("attention")}
    assert all(row["summary"] and row["capabilities"] for row in table.values())
    assert "causal" in table["softmax"]["capabilities"].split(", ")
    assert "causal" not in table["bn_sh"]["capabilities"].split(", ")


def test_one_group_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scales"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "scales"
    assert [line.split("\t")[1] for line in lines[1:]] == ["none", "published"]


@pytest.mark.parametrize("group", ["trainer", "task", "backbone", "beta", "search", "logger"])
def test_every_member_says_one_line(group: str) -> None:
    assert all(row["summary"] for row in rows(group))


def test_tables_show_their_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table" / "paper").mkdir(parents=True)
    (tmp_path / "table" / "paper" / "table1.yaml").write_text("# a comment\ntitle: Accuracy on sets\nrows: []\n")
    for module in ("listing", "groups"):
        monkeypatch.setattr(f"reattend.config.{module}.config_dir", lambda: tmp_path)
    assert rows("table") == [{"name": "paper/table1", "summary": "Accuracy on sets"}]


def test_an_unknown_group_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attenton"]) == 2
    assert "there is no group 'attenton'. Did you mean 'attention'?" in capsys.readouterr().err
