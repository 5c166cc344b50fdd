"""Published numbers that a user fills in from the paper."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from reattend.errors import ReattendError, nearest
from reattend.tables.table import Place, Published, PublishedNumbers, Table

COLUMNS = ("row", "column", "value", "number", "spread", "runs", "source")
_FILLED_IN = "filled in from "


def fill_in(table: Table, path: Path) -> Table:
    """The table with the numbers of a CSV file of `COLUMNS` in places where none, or only an unconfirmed one, is known.

    `spread` is the standard deviation over `runs` runs, and both may be empty: a number takes part in a test with its
    spread only where both are known.

    Raises:
        ReattendError: the file cannot be read, names what the table does not have, has no number or source, or a place
            twice, or one that has been read in a source.
    """
    lines = _lines(path)
    problems = [f"{path}, line {number}: {told}" for number, line in lines for told in _problems(table, line)]
    places = [_place(line) for _, line in lines]
    for (number, _), place in zip(lines, places, strict=True):
        if places.count(place) > 1:
            problems.append(f"{path}, line {number}: {place.row}, {place.column}, {place.value} stands there twice")
    if problems:
        raise ReattendError("\n".join([*problems, f"Each line is {','.join(COLUMNS)}; spread and runs may be empty."]))
    numbers: dict[tuple[str, str, str], dict[str, dict[str, float | list[float]]]] = {}
    for (_, line), place in zip(lines, places, strict=True):
        mean, spread = float(line["number"]), line["spread"]
        block = numbers.setdefault((place.value, line["source"], line["runs"]), {})
        block.setdefault(place.row, {})[place.column] = [mean, float(spread)] if spread else mean
    filled = [
        PublishedNumbers(value, "read", f"{_FILLED_IN}{path.name}: {source}", rows, int(runs) if runs else None)
        for (value, source, runs), rows in numbers.items()
    ]
    return dataclasses.replace(table, published=[*filled, *_without(table.published, places)])


def is_filled_in(published: Published) -> bool:
    """Whether the number comes from a user's file."""
    return published.source.startswith(_FILLED_IN)


def _lines(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if sorted(reader.fieldnames or []) != sorted(COLUMNS):
                raise ReattendError(f"{path}: its first line must be {','.join(COLUMNS)}.")
            return [
                (reader.line_num, {name: (line[name] or "").strip() for name in COLUMNS})
                for line in reader
                if any(isinstance(entry, str) and entry.strip() for entry in line.values())
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReattendError(f"published={path} cannot be read: {error}.") from error


def _place(line: Mapping[str, str]) -> Place:
    return Place(line["row"], line["column"], line["value"])


def _problems(table: Table, line: Mapping[str, str]) -> Iterator[str]:
    known: dict[str, Sequence[str]] = {
        "row": list(table.rows),
        "column": table.all_columns,
        "value": list(table.values),
    }
    for key, names in known.items():
        if line[key] not in names:
            yield f"the table has no {key} '{line[key]}'.{nearest(line[key], names)} It has: {', '.join(names)}."
    for key in ("number", "spread"):
        if not _is_number(line[key]) and (key == "number" or line[key]):
            yield f"{key}: a number, found '{line[key]}'"
    if _is_number(line["spread"]) and float(line["spread"]) < 0:
        yield f"spread: a standard deviation, found {line['spread']}"
    if line["runs"] and not (line["runs"].isdecimal() and int(line["runs"]) > 0):
        yield f"runs: how many the number is the mean of, a whole number from 1 on, found '{line['runs']}'"
    if not line["source"]:
        yield "source: where in the paper the number stands"
    place = _place(line)
    published = table.published_number(place.row, place.column, place.value)
    if published is not None and published.certainty == "read":
        yield f"{place.row}, {place.column}, {place.value} is known already: {published.number} ({published.source})"


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < float("inf")
    except ValueError:
        return False


def _without(blocks: Sequence[PublishedNumbers], places: Sequence[Place]) -> Iterator[PublishedNumbers]:
    for block in blocks:
        kept = {
            row: {column: n for column, n in columns.items() if Place(row, column, block.value) not in places}
            for row, columns in block.numbers.items()
        }
        yield dataclasses.replace(block, numbers={row: columns for row, columns in kept.items() if columns})
