"""The tables that ship: they load, add up, and their rows can be built."""

from __future__ import annotations

import statistics

import pytest

from reattend.config import compose, read
from reattend.tables.cells import compose_cells
from reattend.tables.table import load_table, table_names

# Printed means that do not follow from the cells beside them, as a footnote of the table says.
WRONG_MEANS = {("primal_attention/table1", "longformer"), ("primal_attention/table1", "performer")}


@pytest.mark.parametrize("name", table_names())
def test_it_loads_and_says_what_it_needs(name: str) -> None:
    table = load_table(name)
    assert table.rows
    assert table.columns
    assert table.published or table.claims or name.startswith("own/")


@pytest.mark.parametrize("name", [name for name in table_names() if load_table(name).mean])
def test_printed_means_follow_from_the_printed_cells(name: str) -> None:
    table = load_table(name)
    for block in table.published:
        for row, numbers in block.numbers.items():
            cells = [numbers.get(column) for column in table.columns]
            mean = numbers.get(table.mean or "")
            if mean is None or None in cells:
                continue
            values = [cell[0] if isinstance(cell, list) else cell for cell in cells]
            printed = mean[0] if isinstance(mean, list) else mean
            agrees = abs(statistics.mean(values) - printed) < 0.0501  # type: ignore[arg-type, type-var, operator]
            assert agrees != ((name, row) in WRONG_MEANS), (name, row)


@pytest.mark.parametrize("name", table_names())
def test_rows_of_attentions_can_be_composed_on_a_task_that_exists(name: str) -> None:
    table = load_table(name)
    for row, setting in table.rows.items():
        own = [*table.overrides, *setting.overrides]
        taken = [o for o in own if o.startswith(("attention", "+attention", "beta", "scales", "window"))]
        config = read(compose(["task=uea/japanese_vowels", *taken]))
        assert config.attention.target, (name, row)


@pytest.mark.parametrize("name", table_names())
def test_a_cell_whose_task_does_not_exist_says_so(name: str) -> None:
    table = load_table(name)
    for cell in compose_cells(table, table.rows, table.columns):
        assert cell.config is not None or "does not exist yet" in cell.problem, cell.problem


def test_published_numbers_as_they_are_printed() -> None:
    aft = load_table("aft/table4").published_number("aft_local_24", "enwik8", "test")
    assert aft is not None
    assert (aft.number, aft.certainty) == (1.154, "read")
    primal = load_table("primal_attention/table1").published_number("primal_plus", "PEMS-SF", "accuracy")
    assert primal is not None
    assert primal.number == 90.2
    returns = load_table("primal_attention/table4").published_number("flowformer", "Medium Hopper", "score")
    assert returns is not None
    assert (returns.number, returns.spread, returns.runs) == (66.9, 2.5, 3)
    recalled = load_table("primal_dual/table2").published_number("softmax", "Retrieval", "accuracy")
    assert recalled is not None
    assert recalled.certainty == "unconfirmed"
    assert load_table("primal_dual/table2").published_number("bn_sh", "Retrieval", "accuracy") is None
