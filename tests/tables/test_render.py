"""Text of pages."""

from __future__ import annotations

import pytest

from reattend.tables.render.latex import _column_parts, _row_parts, escaped
from reattend.tables.render.markdown import _text
from reattend.tables.render.numbers import duration, interval, mean_and_spread, plain, probability, seeds, signed
from reattend.tables.render.view import CellView, Grid, Head
from tests.tables.examples import measured


def test_numbers_have_true_minus_signs_and_the_values_digits() -> None:
    assert plain(-1.25, 1) == "−1.2"
    assert signed(0.0, 2) == "+0.00"
    assert signed(-0.5, 2) == "−0.50"
    assert interval((-1.0, 2.0), 1) == "[−1.0, 2.0]"


def test_a_mean_has_its_spread_and_count() -> None:
    assert mean_and_spread(measured(98.0, 99.0, 100.0), 2) == "99.00 ± 1.00 (3)"
    assert mean_and_spread(measured(98.0), 1) == "98.0 (1)"


def test_small_p_values_and_no_seeds() -> None:
    assert probability(0.0001) == "< 0.001"
    assert probability(0.0414) == "0.041"
    assert probability(None) == "–"
    assert seeds(1) == "about 1 more seed"
    assert seeds(12) == "about 12 more seeds"
    assert seeds(None) == ""


def test_times_are_readable() -> None:
    assert [duration(s) for s in (3.0, 200.0, 7200.0)] == ["3.0 s", "3.3 min", "2.0 h"]


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("a_b & 5 % #1 $x {y}", r"a\_b \& 5 \% \#1 \$x \{y\}"),
        (r"\input ~ ^ <>|", r"\textbackslash{}input \textasciitilde{} \textasciicircum{} $<$$>$\textbar{}"),
        ("β − 1 ± ∞", r"$\beta$ $-$ 1 $\pm$ $\infty$"),
        ("Nyströmformer, Demšar, 注", "Nyströmformer, Demsar, ?"),
        ("[0, 1]", "{[}0, 1{]}"),
        ("two\nlines", "two lines"),
    ],
)
def test_latex_prints_names_as_they_are(text: str, latex: str) -> None:
    assert escaped(text) == latex


def test_markdown_prints_names_as_they_are() -> None:
    assert _text("a|b <i> *x* _y_ `z`\nnext") == r"a\|b \<i\> \*x\* \_y\_ \`z\` next"


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 2), (11, 11), (30, 13)])
def test_a_wide_or_long_table_is_printed_in_parts_that_hold_each_cell_once(rows: int, columns: int) -> None:
    cell = CellView("98.00 ± 0.10 (3)", "98.00", "", "", "+0.00 [−0.17, 0.17]", "reproduced")
    heads = tuple(Head(f"Column {place}", "") for place in range(columns))
    grid = Grid("accuracy", heads, tuple((Head(f"row {place}", ""), (cell,) * columns) for place in range(rows)), ())
    for parts, count, most in ((_column_parts(grid), columns, 3), (_row_parts(grid), rows, 8)):
        assert [place for part in parts for place in part] == list(range(count))
        assert max(map(len, parts)) == min(count, most)
