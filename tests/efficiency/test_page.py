"""Tables of measured rows, and the files that they grow in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reattend.efficiency.page import Page, figure
from reattend.errors import ReattendError


def _page(file: Path | None, title: str = "measured so", columns: tuple[str, ...] = ("name", "ms")) -> Page:
    return Page(title, columns, None if file is None else str(file))


def test_a_row_is_in_both_files_as_soon_as_it_is_added(tmp_path: Path) -> None:
    page = _page(tmp_path / "deep" / "table.md")
    page.add("bn", ["12"], {"seconds": [0.011, 0.012, 0.013]})
    assert (
        tmp_path / "deep" / "table.md"
    ).read_text() == "Measured so.\n\n| name | ms |\n| --- | ---: |\n| bn | 12 |\n"
    saved = json.loads((tmp_path / "deep" / "table.json").read_text())
    assert saved["rows"] == {"bn": {"cells": ["12"], "raw": {"seconds": [0.011, 0.012, 0.013]}}}


def test_rows_go_on_where_they_ended(tmp_path: Path) -> None:
    first = _page(tmp_path / "table.md")
    first.note("not installed")
    first.add("a", ["1"], {})
    first.add("b", ["2"], {})
    second = _page(tmp_path / "table.md")
    second.note("not installed")
    second.add("a", ["3"], {})
    second.add("c", ["4"], {})
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[4:] == ["| a | 3 |", "| b | 2 |", "| c | 4 |", "", "- not installed"]


def test_notes_go_when_they_no_longer_hold(tmp_path: Path) -> None:
    first = _page(tmp_path / "table.md")
    first.note("not installed")
    first.add("a", ["1"], {}, "a: too long")
    first.add("b", ["2"], {}, "b: sees the future")
    second = _page(tmp_path / "table.md")
    assert second.all_notes() == ["a: too long", "b: sees the future"]
    second.add("a", ["3"], {})
    assert (tmp_path / "table.md").read_text().splitlines()[4:] == [
        "| a | 3 |",
        "| b | 2 |",
        "",
        "- b: sees the future",
    ]


@pytest.mark.parametrize(("title", "columns"), [("measured otherwise", ("name", "ms")), ("measured so", ("name", "s"))])
def test_rows_of_another_measurement_are_not_mixed_in(tmp_path: Path, title: str, columns: tuple[str, ...]) -> None:
    _page(tmp_path / "table.md").add("a", ["1"], {})
    with pytest.raises(ReattendError, match="was measured otherwise"):
        _page(tmp_path / "table.md", title, columns)


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"rows": {}}', "no JSON"])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(ReattendError, match=r"table\.json.*Remove it, or name another file"):
        _page(tmp_path / "table.md")


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = _page(None)
    page.add("a", ["1 | 2"], {})
    assert r"| a | 1 \| 2 |" in page.markdown()
    assert page.table().row_count == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "shown"), [(0.01912, "0.0191"), (12.34, "12.3"), (999.4, "999"), (2051.4, "2,051"), (25600.0, "25,600")]
)
def test_figures(value: float, shown: str) -> None:
    assert figure(value) == shown
