"""What a reader must not miss."""

from __future__ import annotations

import pytest

from reattend.tables.request import Request, read_request
from reattend.tables.stamps import deviations, stamps
from reattend.tables.table import load_table


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["recipe.epochs=2", "outputs=o", "trainer.threads=1", "launcher=local"], "recipe.epochs=2"),
        (["fidelity=corrected"], "fidelity=corrected"),
        (["trainer.precision=bf16-mixed", "protocol=strict"], "trainer.precision=bf16-mixed"),
        (["+attention.options.fused=false", "scale=quick"], "+attention.options.fused=false"),
        (["fidelity=published", "scale=paper", "data=real"], None),
        (["protocol=strict", "data.root=/data"], None),
        (["recipe=nystromformer"], None),  # as the table has it
    ],
)
def test_settings_that_are_not_the_tables_own_are_told(overrides: list[str], told: str | None) -> None:
    table = load_table("primal_attention/table3")
    request = Request("primal_attention/table3", table, ("softmax",), ("Text",), (0,), tuple(overrides), {})
    lines = [line.partition(". Verdicts")[0] for line in stamps(request, [], [])]
    assert lines == ([] if told is None else [f"not the table's own settings: {told}"])


@pytest.mark.parametrize(
    ("table", "column", "override", "deviates"),
    [
        # A group's default, and another than the table's.
        ("primal_attention/table1", "Heartbeat", "recipe=mvts", True),
        ("primal_dual/table1", "Heartbeat", "recipe=mvts", False),
        ("primal_dual/table1", "PEMS-SF", "recipe=mvts", True),  # the task takes another
        ("primal_dual/table2", "Text", "backbone=uea_encoder", True),
        ("primal_dual/table2", "Text", "backbone=lra_encoder", False),
        ("primal_dual/table1", "Heartbeat", "beta=published", False),
    ],
)
def test_what_a_table_says_anyway_is_no_deviation(table: str, column: str, override: str, deviates: bool) -> None:
    request = read_request([f"table={table}", "rows=softmax", f"columns={column}", override])
    assert list(deviations(request)) == ([override] if deviates else [])
