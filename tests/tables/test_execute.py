"""What a launch is given and what is told afterwards; the launch itself is played."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reattend.config.schema import LauncherConfig
from reattend.errors import ReattendError
from reattend.runs.result import FILE
from reattend.tables import execute as module
from reattend.tables.execute import execute
from reattend.tables.progress import Progress
from reattend.tables.request import read_request
from reattend.tables.worklist import Work, record_failure
from tests.tables.finished import finished

TABLE = """
title: A small table
paper: none
average: seeds
seeds: 2
values: {accuracy: {metric: test/accuracy, better: higher, unit: "%"}}
overrides: [data=standin]
rows:
  softmax: {overrides: [attention=softmax]}
  bn: {overrides: [attention=bn]}
columns:
  Vowels: {overrides: [task=uea/japanese_vowels]}
"""

Launched = list[tuple[LauncherConfig, list[str]]]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(TABLE)
    return path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Every launch that is asked for; those of `bn` fail, all others finish."""
    return play(monkeypatch, lambda work: "attention=bn" not in work.overrides)


def play(monkeypatch: pytest.MonkeyPatch, works: Callable[[Work], bool]) -> Launched:
    asked: Launched = []

    def launch(root: Path, name: str, launcher: LauncherConfig, progress: Progress) -> None:
        asked.append((launcher, [work.label for work in progress.works]))
        for work in progress.works:
            if works(work):
                finished(Path("outputs"), 0.5, work.config.seed, *work.overrides)
            else:
                record_failure(work.folder, ValueError("it does not work"))

    monkeypatch.setattr(module, "launch", launch)
    return asked


def test_what_is_missing_is_launched_and_failures_are_told(table: Path, launched: Launched) -> None:
    finished(Path("outputs"), 0.5, 1, "data=standin", "attention=softmax")
    outcome = execute(read_request([f"table={table}", "launcher=processes"]), retries=0, workers=5)
    ((launcher, labels),) = launched
    assert (launcher.kind, launcher.workers) == ("processes", 5)
    assert labels == ["softmax Vowels seed 0", "bn Vowels seed 0", "bn Vowels seed 1"]
    assert len(outcome.failed) == 2
    assert outcome.lines[0] == "2 of 4 runs done, 2 failed."
    assert "bn Vowels seed 0 failed 1 time(s), at last with ValueError: it does not work" in outcome.lines[1]
    assert (
        "python train.py data=standin attention=bn task=uea/japanese_vowels launcher=processes seed=0"
        in outcome.lines[1]
    )
    assert "to be tried once more: retries=1" in outcome.lines[1]


def test_failed_runs_are_started_again_up_to_the_limit(table: Path, launched: Launched) -> None:
    request = read_request([f"table={table}", "rows=bn", "seeds=1"])
    first = execute(request, retries=1)
    assert first.lines == ["0 of 1 runs done, 1 left, with which the same command goes on."]
    assert len(execute(request, retries=1).failed) == 1
    assert len(execute(request, retries=1).failed) == 1
    assert len(launched) == 2


def test_two_tables_that_share_cells_run_them_once(table: Path, launched: Launched) -> None:
    other = table.with_name("other.yaml")
    other.write_text(TABLE.replace("rows:\n", "rows:\n  same: {overrides: [attention=softmax]}\n"))
    execute(read_request([f"table={table}", "rows=softmax"]))
    outcome = execute(read_request([f"table={other}", "rows=same,softmax"]))
    assert outcome.lines == ["2 of 2 runs done."]
    assert len(launched) == 1


def test_a_table_edited_in_mid_sweep_changes_the_next_command_only(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(work: Work) -> bool:
        table.write_text(TABLE.replace("attention=bn", "attention=sh"))
        return True

    asked = play(monkeypatch, edit)
    assert execute(read_request([f"table={table}", "seeds=1"])).lines == ["2 of 2 runs done."]
    assert {path.parents[2].name for path in Path().glob(f"outputs/runs/**/{FILE}")} == {"softmax", "bn"}
    execute(read_request([f"table={table}", "seeds=1"]))
    assert {path.parents[2].name for path in Path().glob(f"outputs/runs/**/{FILE}")} == {"softmax", "bn", "sh"}
    assert [len(labels) for _, labels in asked] == [2, 1]


def test_a_result_cut_in_half_is_named_set_aside_and_made_again(
    table: Path, launched: Launched, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = read_request([f"table={table}", "rows=softmax"])
    execute(request)
    cut = min(Path().glob(f"outputs/runs/**/{FILE}"))
    cut.write_bytes(cut.read_bytes()[:300])
    (cut.parent / "status.json").write_text("{")
    asked = play(monkeypatch, lambda work: False)
    execute(request)
    out = capsys.readouterr().out
    (result,), (status,) = (cut.parent.glob(f"{name}.json.damaged-*") for name in ("result", "status"))
    assert result.stat().st_size == 300
    for moved in (result, status):
        assert f"A damaged file was set aside as {moved}; its run goes on from its last checkpoint." in out
    assert asked[0][1] == [f"softmax Vowels seed {cut.parent.name[1]}"]


def test_blocked_cells_are_named_once_for_each_reason_and_the_rest_runs(
    table: Path, launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(
        TABLE + "  Missing: {overrides: [task=d4rl/medium_expert_halfcheetah]}\n"
        "  Far: {overrides: [task=uea/folder, task.dataset=Heartbeat, data=real]}\n"
    )
    outcome = execute(read_request([f"table={table}", "rows=softmax", f"data.root={table.parent}"]))
    out = capsys.readouterr().out
    assert "Blocked: softmax on Missing: task=d4rl/medium_expert_halfcheetah does not exist yet\n" in out
    assert "Blocked: Far: The data set Heartbeat is not on this machine" in out
    assert outcome.lines == ["2 of 6 runs done, 4 blocked."]


def test_a_metric_that_no_run_will_have_is_told_before_anything_starts(
    table: Path, launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(TABLE.replace("metric: test/accuracy", "metric: test/acuracy"))
    with pytest.raises(
        ReattendError, match=r"values.accuracy.metric: no run here has test/acuracy\. Did you mean 'test/a"
    ):
        execute(read_request([f"table={table}"]))
    assert not launched
    # As table 4 of the primal-dual paper, whose page says what is missing.
    table.write_text(TABLE.replace("metric: test/accuracy", "metric: analysis/head_distance"))
    execute(read_request([f"table={table}", "seeds=1", "rows=softmax"]))
    assert "no run here has analysis/head_distance." in capsys.readouterr().out
    two = "values: {acc: {metric: test/accuracy, better: higher}, bpc: {metric: test/bits_per_char, better: lower}}"
    table.write_text("\n".join(two if line.startswith("values") else line for line in TABLE.splitlines()))
    execute(read_request([f"table={table}", "seeds=1"]))
    assert "Note: values.bpc.metric: no run here has test/bits_per_char." in capsys.readouterr().out
    assert launched


def test_repeating_a_whole_table_is_refused(table: Path, launched: Launched) -> None:
    with pytest.raises(ReattendError, match="rerun=true is for single runs"):
        execute(read_request([f"table={table}", "rerun=true"]))
    assert not launched
