"""Values along a sweep, beside what is published of it."""

from __future__ import annotations

import re

import pytest
from matplotlib.figure import Figure

from reattend.tables.evidence import Measured
from reattend.tables.render.sweep_plot import along_sweep, places_of
from reattend.tables.table import Setting, Table, load_table
from reattend.tables.table_check import contradictions


def drawn(table: Table, **means: float) -> Figure | None:
    cells = {row: Measured({0: mean - 1, 1: mean + 1}, ()) for row, mean in means.items()}
    return along_sweep(table, places_of(table, list(table.rows)), cells, "enwik8", "test", "bits")


def test_ours_and_the_published_curve_in_the_order_of_the_sweep() -> None:
    figure = drawn(load_table("aft/table5"), s1024=5.0, s0=3.0, s32=2.0)
    assert figure is not None
    ours, published = figure.axes
    (line,) = ours.lines[:1]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 32, 1024], [3, 2, 5])
    (line,) = published.lines
    assert list(line.get_xdata()) == [0, 1, 2, 4, 8, 32, 64, 128, 256, 512, 1024]
    assert [line.get_ydata()[0], line.get_ydata()[5], line.get_ydata()[-1]] == [1.209, 1.154, 1.173]
    assert "Table 5" in published.get_title()


def test_one_place_is_no_curve() -> None:
    assert drawn(load_table("aft/table5"), s32=2.0) is None
    assert drawn(load_table("aft/table4"), softmax_12=2.0, linear=2.0) is None


@pytest.mark.parametrize(
    ("sweep", "row", "column", "told"),
    [
        ("", 1.0, None, "sweep: rows have an 'at' where the table says of what, here a has one"),
        ("window", None, None, "sweep: .* here none has one"),
        ("window", 1.0, 2.0, "columns.c.at: only rows lie on a sweep"),
    ],
)
def test_a_sweep_has_a_name_and_rows(sweep: str, row: float | None, column: float | None, told: str) -> None:
    table = Table("", 1, {}, {"a": Setting([], at=row)}, {"c": Setting([], at=column)}, sweep=sweep)
    (problem,) = contradictions(table)
    assert re.search(told, problem)
