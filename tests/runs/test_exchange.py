"""What there is, what can go, what differs, and what travels."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from reattend.errors import ReattendError
from reattend.runs.catalogue import find_run, run_entries
from reattend.runs.clean import removable, remove
from reattend.runs.command import main
from reattend.runs.diff import diff_runs
from reattend.runs.exchange import export_runs, import_runs
from reattend.runs.files import write_json
from reattend.runs.lease import Lease
from reattend.runs.metrics import MetricsFile
from reattend.runs.result import Result, read_result
from reattend.runs.status import mark
from reattend.tables.cells import compose_cell
from reattend.tables.results import load_results
from reattend.tables.runs import table_runs
from tests.tables.finished import TASK, finished


def done(outputs: Path, seed: int = 0, *overrides: str, accuracy: float = 0.98, **changes: object) -> Path:
    result = finished(outputs, accuracy, seed, *overrides, **changes)  # type: ignore[arg-type]
    folder = next(outputs.rglob(f"s{seed}-{result.fingerprint}"))
    mark(folder, "running")
    mark(folder, "done")
    MetricsFile(folder / "metrics.csv").append(1, 5, {"train/loss": 1.0})
    (folder / "last.ckpt").write_bytes(b"0" * 1000)
    (folder / "model_last.pt").write_bytes(b"0" * 100)
    return folder


def begun(outputs: Path, error: BaseException | None) -> Path:
    folder = outputs / "runs/uea/japanese_vowels/bn/uea_encoder/s9-0123456789ab"
    folder.mkdir(parents=True)
    mark(folder, "running")
    if error:
        mark(folder, "failed", error)
    return folder


def age(folder: Path, days: float) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - days * 86400,) * 2)


def test_every_run_is_listed_with_its_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done(tmp_path)
    folder = begun(tmp_path, ValueError("a bad value"))
    assert [entry.state for entry in run_entries(tmp_path / "runs")] == ["failed", "done"]
    mark(folder, "running")
    assert next(run_entries(tmp_path / "runs")).state == "interrupted"
    with Lease.claim(folder):
        assert next(run_entries(tmp_path / "runs")).state == "running"
    assert main(["status", f"outputs={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "accuracy 0.98" in shown
    assert "2 runs: 1 interrupted, 1 done" in shown


@pytest.mark.parametrize(
    ("name", "content"), [("result.json", None), ("result.json", "{"), ("result.json", "[1]"), ("status.json", "{}")]
)
def test_a_missing_or_damaged_file_is_told_alike_by_status_and_by_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None
) -> None:
    folder = done(tmp_path)
    if name == "status.json":
        (folder / "result.json").unlink()
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    cell = compose_cell("softmax", "x", (TASK, "attention=softmax", f"outputs={tmp_path}"))
    (run,) = table_runs([cell], [0], load_results([tmp_path / "runs"]))
    assert main(["status", f"outputs={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "1 runs: 1 interrupted" in shown
    assert run.state == "interrupted"
    assert f"interrupted: {folder.relative_to(tmp_path / 'runs')}: {run.reason}" in shown
    assert str(folder / name) in run.reason
    assert ("delete it" in run.reason) == (name == "status.json")
    assert "start the run again" in run.reason
    age(folder, 9)
    assert not removable(list(run_entries(tmp_path / "runs")), tmp_path)


def test_only_what_is_confirmed_goes_and_never_a_result(tmp_path: Path) -> None:
    finished_run, failed = done(tmp_path), begun(tmp_path, ValueError("a bad value"))
    age(failed, 2)
    assert main(["clean", f"outputs={tmp_path}"]) == 0
    assert (finished_run / "last.ckpt").exists()
    assert failed.exists()
    assert main(["clean", f"outputs={tmp_path}", "confirm=checkpoints,failed"]) == 0
    assert not failed.exists()
    assert sorted(path.name for path in finished_run.iterdir()) == [
        "metrics.csv",
        "model_last.pt",
        "result.json",
        "status.json",
    ]


def test_a_fresh_failure_and_a_claimed_folder_stay(tmp_path: Path) -> None:
    folder = begun(tmp_path, ValueError("a bad value"))
    launches = tmp_path / "launches"
    assert not removable(list(run_entries(tmp_path / "runs")), launches)
    age(folder, 2)
    (found,) = removable(list(run_entries(tmp_path / "runs")), launches)
    with Lease.claim(folder):
        assert remove(found) == 0
        assert not removable(list(run_entries(tmp_path / "runs")), launches)
    assert folder.exists()


def test_what_was_set_aside_and_old_launches_can_go(tmp_path: Path) -> None:
    folder, launches = done(tmp_path), tmp_path / "launches"
    (folder / "result.json.damaged-20260101T000000").write_text("{")
    for name, runs in (("old", [folder]), ("new", [])):
        write_json(launches / name / "worklist.json", [{"folder": str(run)} for run in runs])
    age(launches / "old", 8)
    with Lease.claim(folder):
        assert "launches" not in {what.kind for what in removable([], launches)}
    assert main(["clean", f"outputs={tmp_path}", "confirm=set_aside,launches"]) == 0
    assert [path.name for path in launches.iterdir()] == ["new"]
    assert not list(folder.glob("*.damaged-*"))
    assert (folder / "result.json").exists()
    assert (folder / "last.ckpt").exists()


def test_a_difference_is_told_with_what_makes_it(tmp_path: Path) -> None:
    left = done(tmp_path / "a")
    right = done(tmp_path / "b", 0, "recipe.epochs=7", accuracy=0.9, versions={"torch": "2.15", "rich": "1"})
    (right / "metrics.csv").unlink()
    MetricsFile(right / "metrics.csv").append(1, 5, {"train/loss": 1.5})
    made = diff_runs(left, right)
    told = {difference.what: difference.matters for difference in made.differences}
    assert told == {"recipe.epochs": True, "version of torch": True, "version of rich": False, "outputs": False}
    assert made.first_step == 5
    assert "recipe.epochs" in made.conclusion
    assert made.metrics["last, test/accuracy"] == (0.98, 0.9)
    assert "are the same" in diff_runs(left, left).conclusion


def test_runs_travel_and_still_belong_to_their_cells(tmp_path: Path) -> None:
    original = done(tmp_path / "here", 0, f"data.root={tmp_path}/secret")
    made = export_runs(run_entries(tmp_path / "here" / "runs"), tmp_path / "sent")
    assert len(made.new) == 1
    sent = next((tmp_path / "sent").rglob("result.json")).parent
    assert sorted(path.name for path in sent.iterdir()) == ["metrics.csv", "provenance.json", "result.json"]
    assert not any(str(tmp_path) in path.read_text() for path in sent.iterdir())
    taken = import_runs(tmp_path / "sent", tmp_path / "there" / "runs")
    assert (len(taken.new), taken.refused) == (1, [])
    cell = compose_cell("softmax", "x", (TASK, "attention=softmax"))
    ((found,), _) = load_results([tmp_path / "there" / "runs"]).of(cell)
    assert found.result.metrics == read_result(original).metrics
    assert found.folder.relative_to(tmp_path / "there") == original.relative_to(tmp_path / "here")
    again = import_runs(tmp_path / "sent", tmp_path / "there" / "runs")
    assert (again.new, len(again.equal), again.refused) == ([], 1, [])


def test_what_was_changed_on_the_way_is_refused(tmp_path: Path) -> None:
    done(tmp_path / "here")
    export_runs(run_entries(tmp_path / "here" / "runs"), tmp_path / "sent")
    path = next((tmp_path / "sent").rglob("result.json"))
    content = json.loads(path.read_text())
    content["metrics"]["last"]["metrics"]["test/accuracy"] = 1.0
    path.write_text(json.dumps(content))
    made = import_runs(tmp_path / "sent", tmp_path / "there" / "runs")
    assert made.new == []
    assert "not the file that was exported" in made.refused[0]
    assert not (tmp_path / "there").exists()


def test_other_metrics_of_the_same_run_never_overwrite_ours(tmp_path: Path) -> None:
    ours = done(tmp_path / "here", accuracy=0.98)
    done(tmp_path / "theirs", accuracy=0.5)
    export_runs(run_entries(tmp_path / "theirs" / "runs"), tmp_path / "sent")
    made = import_runs(tmp_path / "sent", tmp_path / "here" / "runs")
    assert "other metrics" in made.refused[0]
    assert read_result(ours).metrics["last"].metrics["test/accuracy"] == 0.98


def test_a_run_is_found_by_folder_or_first_digits(tmp_path: Path) -> None:
    folder = done(tmp_path)
    digits = folder.name.partition("-")[2]
    assert find_run(str(folder), [tmp_path]) == folder
    assert find_run(digits[:6], [tmp_path]) == folder
    assert find_run(folder.name, [tmp_path]) == folder
    assert find_run("/".join(folder.parts[-5:]), [tmp_path]) == folder
    done(tmp_path, 1)
    with pytest.raises(ReattendError, match="There is no run 'zzz'"):
        find_run("zzz", [tmp_path])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["statu"], "'status'"),
        (["status", "tasks=x"], "task"),
        (["diff", "a"], "two runs"),
        (["export"], "to="),
        (["import"], "from="),
        (["import", "from=nowhere"], "no exported runs"),
        (["clean", "confirm=checkpoint"], "checkpoints"),
        (["status", "outputs=nowhere"], "no runs"),
        (["status", "state=fialed"], "Did you mean 'failed'? There are: done, running"),
        (["status", "attention=sofmax"], "Did you mean 'softmax'?"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done(tmp_path / "outputs")
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_results_have_no_type_besides_result(tmp_path: Path) -> None:
    assert isinstance(next(run_entries(done(tmp_path).parents[3])).result, Result)
