"""Results beside published numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from rich.console import Console

from reattend.config import compose, read, to_dict
from reattend.config.revisions import revisions
from reattend.errors import ReattendError
from reattend.runs.identity import fingerprint, run_folder
from reattend.runs.result import Result, Selected, write_result
from reattend.tables.report import report
from reattend.tables.results import collect
from reattend.tables.table import load_table, table_names


def finished(outputs: Path, accuracy: float, seed: int, *overrides: str) -> Result:
    """Writes the result of a run with that accuracy, as a run would."""
    config = read(compose(["task=uea/japanese_vowels", f"outputs={outputs}", f"seed={seed}", *overrides]))
    plain = to_dict(config)
    name = fingerprint(plain, "checksum", revisions(config))
    metrics = {"test/accuracy": accuracy, "test/loss": 0.1}
    result = Result(
        task=config.task.name,
        attention=config.attention.name,
        backbone=config.backbone.name,
        seed=seed,
        fingerprint=name,
        scale=config.scale.name,
        protocol=config.protocol.name,
        fidelity=plain["fidelity"],
        data=config.data.name,
        metrics={"last": Selected(400, 2000, metrics), "best_on_test": Selected(9, 45, metrics)},
        parameters=1,
        flops=1,
        training_flops=1,
        seconds=1.0,
        peak_memory=1,
        device="cpu",
        versions={},
        git_commit=None,
        data_checksums={"train and test": "checksum"},
        config=plain,
    )
    folder = run_folder(outputs, plain, name)
    folder.mkdir(parents=True)
    write_result(folder, result)
    return result


def text(outputs: Path, *extra: str) -> str:
    table = load_table("primal_dual/table1")
    made = report(table, ["softmax", "bn"], ["JapaneseVowels", "Heartbeat"], [f"outputs={outputs}", *extra])
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for shown in made.tables:
        console.print(shown)
    return console.export_text() + "\n".join(made.remarks)


def test_mean_and_sample_standard_deviation_over_seeds(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.98, 0.99, 1.0)):
        finished(tmp_path, accuracy, seed)
    shown = text(tmp_path)
    assert "99.00 ± 1.00 (3)" in shown
    assert "99.46 (unconfirmed)" in shown
    assert "JapaneseVowels, bn: no finished run; python train.py -m search=seeds attention=bn" in shown
    assert "Heartbeat: task=uea/heartbeat does not exist yet" in shown


def test_only_runs_of_the_cells_own_configuration_count(tmp_path: Path) -> None:
    wanted = finished(tmp_path, 0.98, 0)
    for overrides in (["recipe.epochs=7"], ["fidelity=corrected"], ["scale=quick"], ["attention=bn"]):
        finished(tmp_path, 0.5, 0, *overrides)
    cell = collect(load_table("primal_dual/table1"), "softmax", "JapaneseVowels", [f"outputs={tmp_path}"])
    assert cell.results == (wanted,)


def test_quick_results_are_stamped(tmp_path: Path) -> None:
    finished(tmp_path, 0.98, 0, "scale=quick")
    assert "not comparable with published numbers" in text(tmp_path, "scale=quick")
    assert "not comparable" not in text(tmp_path)


def test_a_damaged_result_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    finished(tmp_path, 0.98, 0)
    (path,) = tmp_path.rglob("result.json")
    path.write_text(path.read_text()[:100])
    finished(tmp_path, 0.99, 1)
    shown = text(tmp_path)
    assert f"{path} is cut off" in shown
    assert "99.00 (1)" in shown


def test_every_table_reads_and_names_rows_and_columns_that_exist() -> None:
    assert table_names()
    for name in table_names():
        table = load_table(name)
        for row, known in table.published.items():
            assert row in table.rows
            assert set(known.values) <= set(table.columns)
        for elsewhere in table.elsewhere:
            assert elsewhere.column in table.columns
        assert dataclasses.is_dataclass(table)


def test_an_unknown_table_is_answered_with_the_nearest() -> None:
    with pytest.raises(ReattendError, match="Did you mean 'primal_dual/table1'"):
        load_table("primal_dual/table")
