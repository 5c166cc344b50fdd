"""Published numbers that a user fills in."""

from __future__ import annotations

from pathlib import Path

import pytest

from reattend.errors import ReattendError
from reattend.tables.published import fill_in, is_filled_in
from reattend.tables.table import Table, load_table

HEAD = "row,column,value,number,spread,runs,source\n"


@pytest.fixture(scope="module")
def table() -> Table:
    return load_table("primal_dual/table1")


def filled(table: Table, folder: Path, *lines: str, head: str = HEAD) -> Table:
    path = folder / "mine.csv"
    path.write_text(head + "\n".join(lines))
    return fill_in(table, path)


def test_a_number_fills_an_unknown_place_and_an_unconfirmed_one(table: Table, tmp_path: Path) -> None:
    made = filled(
        table, tmp_path, "bn,Heartbeat,accuracy,76.1,0.4,5,Table 1", "softmax,Heartbeat,accuracy,75.5,,,Table 1"
    )
    new = made.published_number("bn", "Heartbeat", "accuracy")
    assert new is not None
    assert (new.number, new.spread, new.runs, new.certainty) == (76.1, 0.4, 5, "read")
    assert new.source == "filled in from mine.csv: Table 1"
    assert is_filled_in(new)
    replaced = made.published_number("softmax", "Heartbeat", "accuracy")
    assert replaced is not None
    assert (replaced.number, replaced.spread, replaced.runs) == (75.5, None, None)
    kept = made.published_number("softmax", "JapaneseVowels", "accuracy")
    assert kept is not None
    assert kept.certainty == "unconfirmed"
    assert not is_filled_in(kept)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("bm,Heartbeat,accuracy,1,,,T", "no row 'bm'. Did you mean 'bn'"),
        ("bn,Hartbeat,accuracy,1,,,T", "no column 'Hartbeat'. Did you mean 'Heartbeat'"),
        ("bn,Heartbeat,acuracy,1,,,T", "no value 'acuracy'. Did you mean 'accuracy'"),
        ("bn,Heartbeat,accuracy,high,,,T", "number: a number, found 'high'"),
        ("bn,Heartbeat,accuracy,nan,,,T", "number: a number, found 'nan'"),
        ("bn,Heartbeat,accuracy,1,x,,T", "spread: a number, found 'x'"),
        ("bn,Heartbeat,accuracy,1,-1,3,T", "spread: a standard deviation, found -1"),
        (
            "bn,Heartbeat,accuracy,1,1,0,T",
            "runs: how many the number is the mean of, a whole number from 1 on, found '0'",
        ),
        ("bn,Heartbeat,accuracy,1,1,some,T", "found 'some'"),
        ("bn,Heartbeat,accuracy,1,,,", "source: where in the paper"),
        ("bn,Heartbeat,accuracy", "number: a number, found ''"),
    ],
)
def test_a_mistake_is_named_with_its_line(table: Table, tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(ReattendError, match="line 2: ") as caught:
        filled(table, tmp_path, line)
    assert told in str(caught.value)


def test_a_place_is_filled_once(table: Table, tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match="bn, Heartbeat, accuracy stands there twice"):
        filled(table, tmp_path, "bn,Heartbeat,accuracy,1,,,T", "bn,Heartbeat,accuracy,2,,,T")


def test_a_number_that_was_read_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"known already: 32\.7"):
        filled(load_table("primal_attention/table1"), tmp_path, "softmax,EthanolConcentration,accuracy,1,,,T")


def test_other_columns_and_a_missing_file_are_refused(table: Table, tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match="its first line must be row,column,value,number,spread,runs,source"):
        filled(table, tmp_path, head="row,column,number\n")
    with pytest.raises(ReattendError, match="cannot be read"):
        fill_in(table, tmp_path / "none.csv")
