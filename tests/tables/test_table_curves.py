"""Training curves of a table's runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from reattend.errors import ReattendError
from reattend.runs.metrics import FILE, MetricsFile
from reattend.tables.command import main
from reattend.tables.curves import table_curves
from reattend.tables.table import load_table
from tests.tables.test_report import finished


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two finished runs of softmax and one of another number of epochs, each with metrics."""
    finished(tmp_path, 0.98, 0)
    finished(tmp_path, 0.99, 1)
    finished(tmp_path, 0.5, 0, "recipe.epochs=7")
    for path in tmp_path.rglob("result.json"):
        accuracy = 0.5 if '"epochs": 7' in path.read_text() else 0.9
        MetricsFile(path.with_name(FILE)).append(1, 4, {"train/loss": 1.0, "test/accuracy": accuracy})
    return tmp_path


def test_the_cells_own_runs_are_drawn(outputs: Path) -> None:
    table = load_table("primal_dual/table1")
    figure = table_curves(table, ["softmax", "bn"], ["JapaneseVowels", "Heartbeat"], [f"outputs={outputs}"])
    loss, accuracy = figure.get_axes()
    assert loss.get_title().startswith("JapaneseVowels")
    assert accuracy.get_ylabel() == "accuracy (%)"
    values = [float(line.get_ydata()[0]) for line in accuracy.get_lines()]  # type: ignore[index, arg-type]
    assert values == pytest.approx([90.0] * 3)  # two seeds and their mean
    assert figure.get_suptitle() == table.title


def test_a_table_without_runs_has_no_curves(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match="no run of the table is finished"):
        table_curves(load_table("primal_dual/table1"), ["bn"], ["JapaneseVowels"], [f"outputs={tmp_path}"])


def test_the_command_writes_the_picture(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["table=primal_dual/table1", "columns=JapaneseVowels", f"outputs={outputs}"]
    main([*arguments, f"curves={outputs / 'a.svg'}"])
    assert b"<svg" in (outputs / "a.svg").read_bytes()
    with pytest.raises(SystemExit):
        main([*arguments, "curves=a.docx"])
    assert "a picture ends with .svg" in capsys.readouterr().err
