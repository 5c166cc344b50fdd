"""What a plan says a run will have is what its result has."""

from __future__ import annotations

from pathlib import Path

import pytest

from reattend.runs.result import read_result
from reattend.tables.cells import compose_cell
from reattend.train.execute import execute, plan

TEXT = ["task=char_lm/file", "scale.max_length=16", "scale.batch_size=64", "scale.steps_per_epoch=1"]
IMAGES = ["task=image/cifar10", "task.data_options.test_sizes=[40]", "scale.batch_size=64", "scale.steps_per_epoch=1"]
TINY = ["scale.epochs=1", "backbone.options.dim=16", "backbone.options.depth=1", "data=standin", "scale=quick"]


@pytest.mark.parametrize(
    "overrides",
    [
        TEXT,
        [*TEXT, "protocol=strict"],
        [*IMAGES, "attention=aft_conv", "recipe.ema_decay=0.9", "scale.warmup_epochs=0"],
    ],
    ids=["text", "text_strict", "images_averaged"],
)
def test_a_cells_metrics_are_those_of_its_result(tmp_path: Path, overrides: list[str]) -> None:
    cell = compose_cell("row", "column", (*TINY, *overrides, f"outputs={tmp_path}", "trainer=cpu"))
    assert cell.config is not None, cell.problem
    planned = plan(cell.config)
    execute(planned)
    found = {name for selected in read_result(planned.folder).metrics.values() for name in selected.metrics}
    assert found == set(cell.metrics)
