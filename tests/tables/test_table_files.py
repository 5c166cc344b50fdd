"""The tables that ship: they load, add up, and their rows can be built."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

import pytest

from reattend.config import compose, config_dir, read
from reattend.tables.cells import compose_cells
from reattend.tables.table import OF_A_DEVICE, PublishedNumbers, Table, load_table, table_names

# Printed means that do not follow from the cells beside them, as a footnote of the table says.
WRONG_MEANS = {("primal_attention/table1", "longformer"), ("primal_attention/table1", "performer")}


@pytest.mark.parametrize("name", table_names())
def test_it_loads_and_says_what_it_needs(name: str) -> None:
    table = load_table(name)
    assert table.rows
    assert table.columns
    assert table.published or table.claims or name.startswith("own/")


@pytest.mark.parametrize("name", table_names())
def test_its_file_names_its_command_and_has_no_long_lines(name: str) -> None:
    lines = (config_dir() / "table" / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == f"# python scripts/reproduce.py table={name}"
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("name", [name for name in table_names() if load_table(name).mean])
def test_printed_means_follow_from_the_printed_cells_which_are_all_there(name: str) -> None:
    table = load_table(name)
    for block in [*table.published, *table.elsewhere]:
        for row, numbers in block.numbers.items():
            values = [mean_of(numbers[column]) for column in table.columns if column in numbers]
            mean = numbers.get(table.mean or "")
            if mean is None or not values:  # some sources have the cells alone, or the means alone
                continue
            assert len(values) == len(table.columns), (name, row)
            agrees = abs(statistics.mean(values) - mean_of(mean)) < 0.0501
            assert agrees != ((name, row) in WRONG_MEANS), (name, row)


@pytest.mark.parametrize("name", [name for name in table_names() if load_table(name).published])
def test_published_numbers_keep_their_digits_and_get_no_new_ones(name: str) -> None:
    table = load_table(name)
    for value, setting in table.values.items():
        blocks = [block for block in table.published if block.value == value]
        if blocks:
            assert max(decimals(blocks)) == setting.digits, (name, value)


def mean_of(number: float | list[float]) -> float:
    return number[0] if isinstance(number, list) else number


def decimals(blocks: list[PublishedNumbers]) -> Iterator[int]:
    for block in blocks:
        for columns in block.numbers.values():
            for number in columns.values():
                yield len(str(float(mean_of(number))).partition(".")[2])


@pytest.mark.parametrize("name", [name for name in table_names() if name.startswith("primal_dual/")])
def test_claims_of_the_primal_dual_paper_name_a_place_that_it_has(name: str) -> None:
    for claim in load_table(name).claims.values():
        assert re.search(r", (section [34]|Appendix (B\.[1-5]|C))( and Figure 1.*)?$", claim.source), claim.source


@pytest.mark.parametrize("name", table_names())
def test_rows_compose_on_a_task_that_exists_and_are_unfused_where_papers_measured_time_or_memory(name: str) -> None:
    table = load_table(name)
    measured = set(rows_measured_beside_others(table))
    for row, setting in table.rows.items():
        own = [*table.overrides, *setting.overrides]
        taken = [o for o in own if o.startswith(("attention", "+attention", "beta", "scales", "window"))]
        attention = read(compose(["task=uea/japanese_vowels", *taken])).attention
        assert attention.target, (name, row)
        if row in measured:
            options = [attention.options, *(part.options for part in attention.parts.values())]
            assert not any(part["kernel"].get("fused") for part in options if "kernel" in part), (name, row)


def rows_measured_beside_others(table: Table) -> Iterator[str]:
    """Rows whose time or memory is compared with that of another row, by a ratio or a claim."""
    hardware = {name for name, value in table.values.items() if value.metric in OF_A_DEVICE}
    if any(table.values[name].relative_to for name in hardware):
        yield from table.rows
    for claim in table.claims.values():
        if claim.left.value in hardware and claim.left.row != claim.right.row:
            yield from (claim.left.row, claim.right.row)


@pytest.mark.parametrize("name", table_names())
def test_a_cell_whose_task_does_not_exist_says_so(name: str) -> None:
    table = load_table(name)
    rows, columns = list(table.rows), list(table.columns)
    cells = [*compose_cells(table, rows, columns[:1]), *compose_cells(table, rows[:1], columns[1:])]
    for cell in cells:
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
