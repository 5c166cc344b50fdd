"""The sets of the papers' tables."""

from __future__ import annotations

from reattend.config import compose, read
from reattend.data.known_sets import KNOWN_SETS
from reattend.tables.table import load_table


def sets(table: str) -> list[str]:
    return list(load_table(f"primal_dual/{table}").columns)


def test_the_fifteen_further_sets_follow_the_stated_rule() -> None:
    others = {n: known for n, known in KNOWN_SETS.items() if known.archive == "uea" and n not in sets("table1")}
    assert len(others) == 20
    small = [name for name, known in others.items() if known.training_values <= 10_000_000]
    most_cases = sorted(small, key=lambda name: sum(others[name].cases))[-15:]
    assert sorted(sets("table8")) == sorted(most_cases)


def test_the_columns_of_the_tables_are_the_sets_of_their_tasks() -> None:
    for table in ("table1", "table8", "table9"):
        for name, column in load_table(f"primal_dual/{table}").columns.items():
            task = read(compose([*column.overrides, "attention=bn_sh"])).task
            assert task.dataset == name
            assert KNOWN_SETS[name].archive == task.archive
