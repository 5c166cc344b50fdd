"""Measured rows as a table on the terminal and, if wanted, in a file that grows row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from reattend.errors import ReattendError
from reattend.runs.files import read_json, write_bytes, write_json


class Page:
    """Rows of cells, each with the raw figures that its cells were made from.

    Args:
        title: what the rows share: the shape, and under what conditions they are measured.
        columns: heads of the columns; the first one is the row's name.
        file: Markdown file that is written after every row, with a JSON file beside it that holds the raw figures; rows
            that it has already are kept. None writes nothing.

    Attributes:
        failed: whether something that was measured is not as it should be.

    Raises:
        ReattendError: `file` holds rows of another title or other columns.
    """

    def __init__(self, title: str, columns: Sequence[str], file: str | None = None) -> None:
        self.title = title
        self.columns = list(columns)
        self.file = None if file is None else Path(file).with_suffix(".md")
        self.rows: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.failed = False
        if self.file is not None and self._raw_file.exists():
            self._resume()

    @property
    def _raw_file(self) -> Path:
        assert self.file is not None
        return self.file.with_suffix(".json")

    def _resume(self) -> None:
        remedy = "Remove it, or name another file."
        saved = read_json(self._raw_file, remedy)
        if not isinstance(saved, dict) or set(saved) != {"title", "columns", "notes", "rows"}:
            raise ReattendError(f"{self._raw_file} holds no measured rows. {remedy}")
        if (saved["title"], saved["columns"]) != (self.title, self.columns):
            told = f"{self._raw_file} was measured otherwise:\n  {saved['title']}\nnow:\n  {self.title}\n{remedy}"
            raise ReattendError(told)
        self.rows, self.notes = saved["rows"], saved["notes"]

    def add(self, name: str, cells: Sequence[str], raw: Mapping[str, Any]) -> None:
        """Adds a row, in the place of one of the same name, and writes the file."""
        self.rows[name] = {"cells": list(cells), "raw": dict(raw)}
        self.save()

    def note(self, text: str) -> None:
        """Adds a sentence that stands under the table, once."""
        if text not in self.notes:
            self.notes.append(text)

    def save(self) -> None:
        """Writes both files, if there is a file."""
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        saved = {"title": self.title, "columns": self.columns, "notes": self.notes, "rows": self.rows}
        write_json(self._raw_file, saved)
        write_bytes(self.file, self.markdown().encode())

    def markdown(self) -> str:
        """The title, a table of the rows, and the notes."""
        lines = [f"{self.title[:1].upper()}{self.title[1:]}.", "", _line(self.columns)]
        lines.append(_line(["---", *["---:"] * (len(self.columns) - 1)]))
        lines += [_line([name, *row["cells"]]) for name, row in self.rows.items()]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def table(self) -> Table:
        """The same for a terminal."""
        table = Table(title=self.title, caption="\n".join(self.notes) or None, caption_justify="left")
        for position, column in enumerate(self.columns):
            table.add_column(column, justify="right" if position else "left")
        for name, row in self.rows.items():
            table.add_row(name, *row["cells"])
        return table


def figure(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
