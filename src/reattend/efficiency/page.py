"""Measured rows as a table on the terminal and, if wanted, in a file that grows row by row."""

from __future__ import annotations

import tempfile
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
        notes: sentences about the whole, which a file that is taken up again does not keep.
        failed: whether something that was measured is not as it should be.

    Raises:
        ReattendError: `file` holds rows of another title or other columns, or cannot be written.
    """

    def __init__(self, title: str, columns: Sequence[str], file: str | None = None) -> None:
        self.title = title
        self.columns = list(columns)
        self.file = None if file is None else _markdown_file(file)
        self.rows: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.failed = False
        if self.file is not None:
            check_writable("file", self.file)
            if self._raw_file.exists():
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
        self.rows = saved["rows"]

    def add(self, name: str, cells: Sequence[str], raw: Mapping[str, Any], note: str = "") -> None:
        """Adds a row, in the place of one of the same name, and writes the file; its note stays as long as the row."""
        self.rows[name] = {"cells": list(cells), "raw": dict(raw)} | ({"note": note} if note else {})
        self.save()

    def note(self, text: str) -> None:
        """Adds a sentence about the whole, which stands under the table."""
        self.notes.append(text)

    def all_notes(self) -> list[str]:
        """The notes of rows and of the whole, each once."""
        return list(dict.fromkeys([*(row["note"] for row in self.rows.values() if "note" in row), *self.notes]))

    def save(self) -> None:
        """Writes both files, if there is a file."""
        if self.file is None:
            return
        saved = {"title": self.title, "columns": self.columns, "notes": self.notes, "rows": self.rows}
        write_json(self._raw_file, saved)
        write_bytes(self.file, self.markdown().encode())

    def markdown(self) -> str:
        """The title, a table of the rows, and the notes."""
        lines = [f"{self.title[:1].upper()}{self.title[1:]}.", "", _line(self.columns)]
        lines.append(_line(["---", *["---:"] * (len(self.columns) - 1)]))
        lines += [_line([name, *row["cells"]]) for name, row in self.rows.items()]
        if notes := self.all_notes():
            lines += ["", *(f"- {note}" for note in notes)]
        return "\n".join(lines) + "\n"

    def table(self) -> Table:
        """The same for a terminal."""
        table = Table(title=self.title, caption="\n".join(self.all_notes()) or None, caption_justify="left")
        for position, column in enumerate(self.columns):
            table.add_column(column, justify="right" if position else "left")
        for name, row in self.rows.items():
            table.add_row(name, *row["cells"])
        return table


def check_writable(option: str, path: Path) -> None:
    """Tries whether a file could be written, beside it.

    Raises:
        ReattendError: `option=path` cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ReattendError(f"{option}={path} cannot be written: {error.strerror or error}") from error


def figure(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _markdown_file(file: str) -> Path:
    try:
        return Path(file).with_suffix(".md")
    except ValueError:
        raise ReattendError(f"file={file} names no file") from None


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
