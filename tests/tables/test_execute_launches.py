"""Real processes on one list of runs: nothing is done twice, nothing is lost, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from reattend.runs.catalogue import state_of
from reattend.runs.lease import Lease
from reattend.runs.result import FILE
from reattend.tables.reproduce import main
from reattend.tables.worklist import Work, failures, is_done
from tests.tables.launch import Launches, ended, is_gone, kill, wait_for, works

HUNDRED = """
title: A hundred runs
paper: none
average: seeds
seeds: 25
values: {accuracy: {metric: test/accuracy, better: higher, unit: "%"}}
overrides: [data=standin]
rows:
  softmax: {overrides: [attention=softmax]}
  bn: {overrides: [attention=bn]}
  sh: {overrides: [attention=sh]}
  bn_sh: {overrides: [attention=bn_sh]}
columns:
  Vowels: {overrides: [task=uea/japanese_vowels]}
"""


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> list[Work]:
    return works(Path("out"), ["softmax", "bn", "sh"], 2)


@pytest.fixture
def launches(tmp_path: Path, six: list[Work], monkeypatch: pytest.MonkeyPatch) -> Launches:
    monkeypatch.chdir(tmp_path)  # where the runs' folders are
    return Launches(tmp_path, six)


def test_one_process_does_all_and_the_same_again_does_nothing(launches: Launches) -> None:
    done = launches.run()
    assert done.returncode == 0, done.stderr
    assert len(launches.results) == 6
    assert set(launches.times("end").values()) == {1}
    assert len({pid for pid, _ in launches.noted("start")}) == 1
    assert "a line of output" not in done.stdout
    assert all("a line of output" in (path.parent / "output.log").read_text() for path in launches.results)
    assert "sh Vowels seed 1 done: test/accuracy 0.5000 (last), 1 s  (6 of 6 done, 0 running)" in done.stdout
    assert launches.run().returncode == 0
    assert len(launches.noted("start")) == 6
    assert not list(launches.outputs.glob("launches/*"))


def test_two_launches_of_two_workers_never_do_a_run_twice(launches: Launches) -> None:
    both = [launches.start("processes", workers=2, FAKE_STEPS=15) for _ in range(2)]
    finished = [ended(process) for process in both]
    assert [done.returncode for done in finished] == [0, 0], finished
    assert len(launches.times("start")) == 6
    assert set(launches.times("start").values()) == set(launches.times("end").values()) == {1}
    assert len({pid for pid, _ in launches.noted("start")}) >= 2
    assert all(json.loads((path.parent / "status.json").read_text())["attempts"] == 1 for path in launches.results)


def test_a_killed_worker_is_replaced_and_its_run_taken_up_again(launches: Launches) -> None:
    process = launches.start("processes", workers=2, FAKE_STEPS=40)
    wait_for(lambda: launches.noted("start"), process)
    victim, name = launches.noted("start")[0]
    kill(victim)
    done = ended(process)
    assert done.returncode == 0, done.stderr
    assert launches.times("start")[name] == 2
    assert len(launches.results) == 6
    (folder,) = launches.outputs.glob(f"runs/**/{name}")
    (failure,) = failures(folder)
    assert failure.type == "WorkerDied"
    assert "SIGKILL" in failure.message


def test_workers_end_with_a_killed_parent_and_the_next_launch_goes_on(launches: Launches) -> None:
    process = launches.start("processes", workers=2, FAKE_STEPS=400)
    wait_for(lambda: len({pid for pid, _ in launches.noted("start")}) == 2, process)
    workers = {pid for pid, _ in launches.noted("start")}
    kill(process.pid)
    ended(process)
    wait_for(lambda: all(is_gone(pid) for pid in workers))
    assert len(launches.noted("saved")) == 2
    assert launches.run().returncode == 0
    assert len(launches.results) == 6
    assert set(launches.times("end").values()) == {1}
    assert not [work for work in launches.works if failures(work.folder)]


@pytest.mark.parametrize("kind", ["local", "processes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_it_saves_and_counts_no_failure(launches: Launches, kind: str, number: int) -> None:
    process = launches.start(kind, FAKE_STEPS=400)
    wait_for(lambda: launches.noted("start"), process)
    os.kill(process.pid, number)
    assert ended(process).returncode == 130
    assert launches.times("saved") == launches.times("start")
    assert not [work for work in launches.works if failures(work.folder)]


def test_a_failing_run_among_good_ones_is_tried_again_and_given_up(launches: Launches) -> None:
    done = launches.run("processes", retries=1, FAKE_FAILS="bn")
    assert done.returncode == 0, done.stderr
    assert len(launches.results) == 4
    assert sorted(launches.times("start").values()) == [1, 1, 1, 1, 2, 2]
    assert "bn Vowels seed 0 failed: RuntimeError: it does not work" in done.stdout
    failed = [work for work in launches.works if failures(work.folder)]
    assert all([f.message for f in failures(work.folder)] == ["it does not work"] * 2 for work in failed)
    assert all("RuntimeError: it does not work" in (work.folder / "output.log").read_text() for work in failed)
    assert launches.run(retries=1).returncode == 0
    assert len(launches.noted("start")) == 8
    assert launches.run(retries=2).returncode == 0
    assert len(launches.results) == 6


def test_a_run_that_kills_its_process_is_given_up_too(launches: Launches) -> None:
    done = launches.run("processes", retries=1, workers=1, FAKE_DIES="bn")
    assert done.returncode == 0, done.stderr
    assert len(launches.results) == 4
    assert sorted(launches.times("start").values()) == [1, 1, 1, 1, 2, 2]
    assert "its process ended with signal SIGKILL; out of memory, or killed" in done.stdout


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        ("processes", "half"),
        pytest.param("local", "half", marks=pytest.mark.slow),
        pytest.param("processes", "renamed", marks=pytest.mark.slow),
    ],
)
def test_killed_while_it_writes_its_result_a_run_loses_nothing(launches: Launches, kind: str, moment: str) -> None:
    while (done := launches.run(kind, workers=1, FAKE_CUT=f"bn {moment}")).returncode == -signal.SIGKILL:
        assert not [path for path in launches.results if not is_done(path.parent)]
    assert done.returncode == 0, done.stderr
    assert len(launches.results) == 6
    assert [state_of(work.folder)[0] for work in launches.works] == ["done"] * 6
    assert sorted(launches.times("start").values()) == ([1, 1, 1, 1, 2, 2] if moment == "half" else [1] * 6)
    assert not list(launches.outputs.rglob("*.tmp"))


def test_a_run_of_a_living_process_is_left_alone_and_waited_for(launches: Launches) -> None:
    folder = launches.works[0].folder
    with Lease.claim(folder):
        process = launches.start()
        wait_for(lambda: len(launches.results) == 5, process)
        assert folder.name not in launches.times("start")
        assert process.poll() is None
    assert ended(process).returncode == 0
    assert len(launches.results) == 6


def test_a_full_disk_stops_everything_and_counts_as_no_failure(launches: Launches) -> None:
    done = launches.run("processes", workers=1, FAKE_FULL="bn")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert len(launches.results) == 2
    assert not failures(launches.works[2].folder)
    assert launches.run().returncode == 0
    assert len(launches.results) == 6


def test_a_clock_that_is_set_back_loses_nothing(launches: Launches) -> None:
    process = launches.start(FAKE_STEPS=400)
    wait_for(lambda: launches.noted("start"), process)
    kill(process.pid)
    ended(process)
    folder = launches.works[0].folder
    path = folder / "status.json"
    path.write_text(path.read_text().replace('"time": "20', '"time": "30'))
    for path in folder.iterdir():
        os.utime(path, (4e9, 4e9))
    assert launches.run().returncode == 0
    assert json.loads((folder / "status.json").read_text())["attempts"] == 2
    assert len(launches.results) == 6


def test_workers_that_cannot_start_are_not_started_for_ever(launches: Launches) -> None:
    done = launches.run("processes", workers=1, FAKE_BROKEN="1")
    assert done.returncode == 1
    assert "Workers end before they take a run (exit code 1)" in done.stderr
    assert "no such library" in done.stderr


@pytest.mark.slow
def test_a_hundred_runs_planned_run_with_kills_and_reported_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = ["table=hundred.yaml", "outputs=out"]
    Path("hundred.yaml").write_text(HUNDRED)
    assert main([*table, "plan=true"]) == 0
    assert not Path("out", "runs").exists()
    launches = Launches(tmp_path, works(Path("out"), ["softmax", "bn", "sh", "bn_sh"], 25))
    killed = 0
    for _ in range(50):
        both = [launches.start("processes", retries=9, workers=2, FAKE_STEPS=10) for _ in range(2)]
        wait_for_ends(launches, 5)
        kill(launches.noted("start")[-1][0])
        wait_for_ends(launches, 10)
        if len(launches.noted("end")) < 100:
            for process in both:
                kill(process.pid)
                killed += 1
        codes = [ended(process).returncode for process in both]
        if 0 in codes:
            break
    assert killed > 5
    assert len(launches.results) == 100
    assert set(launches.times("end").values()) == {1}
    assert len(launches.times("end")) == 100
    assert {json.loads((work.folder / FILE).read_text())["seed"] for work in launches.works} == set(range(25))
    assert main(table) == 0  # all is done: the page only
    assert "100 of 100 runs done." in capsys.readouterr().out
    (page,) = Path("out").glob("reports/**/report.md")
    assert page.read_text().count("50.00 ± 0.00 (25)") >= 4


@pytest.mark.slow
def test_tables_that_share_cells_and_are_edited_in_mid_sweep_run_each_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "  softmax: {overrides: [attention=softmax]}\n  bn: {overrides: [attention=bn]}\n"
    table = HUNDRED[: HUNDRED.index("  softmax")].replace("25", "2") + rows + HUNDRED[HUNDRED.index("columns") :]
    (tmp_path / "a.yaml").write_text(table)
    (tmp_path / "b.yaml").write_text(table.replace("bn", "sh").replace("softmax:", "same:"))
    launches = Launches(tmp_path, works(Path("out"), ["softmax", "bn", "sh", "primal"], 2))
    both = [launches.command(f"table={name}.yaml", "outputs=out", "report=false", FAKE_STEPS=50) for name in "ab"]
    wait_for(lambda: launches.noted("start"))
    (tmp_path / "a.yaml").write_text(table.replace("bn", "primal"))
    for process in both:
        done = ended(process)
        assert done.returncode == 0, done.stderr
        assert "4 of 4 runs done." in done.stdout
    assert {path.parents[2].name for path in launches.results} == {"softmax", "bn", "sh"}
    assert len(launches.results) == 6
    done = ended(launches.command("table=a.yaml", "outputs=out", "report=false"))
    assert done.returncode == 0, done.stderr
    assert len(launches.results) == 8
    assert sorted(launches.times("end").values()) == [1] * 8


def wait_for_ends(launches: Launches, more: int) -> None:
    """Until so many more runs have ended, or all."""
    wanted = min(len(launches.noted("end")) + more, len(launches.works))
    wait_for(lambda: len(launches.noted("end")) >= wanted)
