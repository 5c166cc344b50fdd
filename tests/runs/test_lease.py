from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reattend.errors import ReattendError
from reattend.runs import lease as lease_module
from reattend.runs.lease import Lease, LeaseLost, RunClaimed, holder

from .processes import HOLD, kill, start, started

# All contenders start when the folder's file `go` appears, and hold what they win until every one has tried.
CONTEND = """
import sys, time
from pathlib import Path
from reattend.runs.lease import Lease, RunClaimed
folder = Path(sys.argv[1])
while not Path(sys.argv[2]).exists():
    pass
try:
    lease = Lease.claim(folder, interval=0.05, limit=0.2)
    print("won", flush=True)
    sys.stdin.readline()
    lease.check()
    lease.release()
except RunClaimed:
    print("lost", flush=True)
    sys.stdin.readline()
"""

KILLED_WHILE_LINKING = """
import os, signal, sys
from pathlib import Path
from reattend.runs.lease import Lease
link = os.link
def killed(source, target):
    if sys.argv[2] == "after":
        link(source, target)
    print("linking", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
os.link = killed
Lease.claim(Path(sys.argv[1]))
"""


def foreign(folder: Path, age: float, **changes: Any) -> Path:
    """A lease of another host whose heart last beat `age` seconds ago."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "host": "elsewhere",
        "place": "elsewhere/boot/pid",
        "pid": 12,
        "process_start": "1",
        "token": "t",
        "since": "2026-01-01T00:00:00+00:00",
        "beat": 7,
        "released": False,
    }
    path = folder / "lease.4"
    path.write_text(json.dumps(record | changes))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_two_processes_one_wins(tmp_path: Path) -> None:
    with started(HOLD, tmp_path) as process:
        with pytest.raises(RunClaimed) as caught:
            Lease.claim(tmp_path)
        message = str(caught.value)
        assert str(process.pid) in message
        assert os.uname().nodename in message
        assert str(tmp_path) in message
        assert "kill" in message
        found = holder(tmp_path)
        assert found is not None
        assert found.since in message


def test_released_folder_can_be_claimed_again(tmp_path: Path) -> None:
    for _ in range(3):
        with Lease.claim(tmp_path) as lease:
            lease.check()
        found = holder(tmp_path)
        assert found is not None
        assert found.released
    assert len(list(tmp_path.glob("lease.*"))) == 1


def test_released_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lease.claim(tmp_path):
        _ = 1 / 0
    Lease.claim(tmp_path).release()


def test_same_process_cannot_claim_twice(tmp_path: Path) -> None:
    with Lease.claim(tmp_path), pytest.raises(RunClaimed):
        Lease.claim(tmp_path)


def test_killed_process_loses_it_at_once(tmp_path: Path) -> None:
    with started(HOLD, tmp_path) as process:
        kill(process)
        before = time.monotonic()
        with Lease.claim(tmp_path) as lease:
            assert time.monotonic() - before < 1
            lease.check()


def test_killed_process_that_nobody_waited_for_loses_it_too(tmp_path: Path) -> None:
    """A zombie still has its process id."""
    with started(HOLD, tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        while ") Z " not in Path(f"/proc/{process.pid}/stat").read_text():
            time.sleep(0.01)
        Lease.claim(tmp_path).release()


def test_stopped_process_keeps_it(tmp_path: Path) -> None:
    with started(HOLD, tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.utime(tmp_path / "lease.1", (1, 1))
        with pytest.raises(RunClaimed):
            Lease.claim(tmp_path, interval=0.05, limit=0.1)


def test_process_id_given_to_another_process_does_not_hold_it(tmp_path: Path) -> None:
    foreign(tmp_path, age=0, place=lease_module.place(), pid=os.getpid(), process_start="1")
    Lease.claim(tmp_path).release()


def test_other_host_keeps_it_until_the_limit(tmp_path: Path) -> None:
    foreign(tmp_path, age=30)
    with pytest.raises(RunClaimed, match="process 12 on elsewhere since 2026-01-01"):
        Lease.claim(tmp_path, interval=0.05, limit=60)
    Lease.claim(tmp_path, interval=0.05, limit=20).release()


@pytest.mark.parametrize("age", [1000.0, -1000.0], ids=["clock set forward", "clock set back"])
def test_other_host_whose_heart_beats_keeps_it_whatever_the_clock_says(tmp_path: Path, age: float) -> None:
    path = foreign(tmp_path, age)
    with ThreadPoolExecutor(1) as pool:
        claim = pool.submit(Lease.claim, tmp_path, interval=0.2, limit=1)
        time.sleep(0.2)
        path.write_text(path.read_text().replace('"beat": 7', '"beat": 8'))
        os.utime(path, (time.time() - age, time.time() - age))
        with pytest.raises(RunClaimed):
            claim.result()


def test_other_host_that_is_dead_loses_it_though_its_clock_was_ahead(tmp_path: Path) -> None:
    foreign(tmp_path, age=-1000)
    Lease.claim(tmp_path, interval=0.05, limit=0.3).release()


def test_half_written_lease_counts_as_held_until_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "lease.1"
    path.write_text('{"host": "else')
    with pytest.raises(RunClaimed, match="at this moment"):
        Lease.claim(tmp_path)
    os.utime(path, (1, 1))
    Lease.claim(tmp_path, interval=0.05).release()


@pytest.mark.parametrize("round_", range(3))
@pytest.mark.parametrize("kind", ["none", "stale elsewhere", "killed here", "released"])
def test_of_many_contenders_exactly_one_wins(tmp_path: Path, kind: str, round_: int) -> None:
    folder, go = tmp_path / "run", tmp_path / "go"
    if kind == "stale elsewhere":
        foreign(folder, age=100)
    elif kind == "killed here":
        foreign(folder, age=0, place=lease_module.place(), pid=os.getpid(), process_start="1")
    elif kind == "released":
        foreign(folder, age=0, released=True)
    contenders = [start(CONTEND, folder, go) for _ in range(6)]
    try:
        go.touch()
        answers = [process.stdout.readline().strip() for process in contenders if process.stdout]
        assert sorted(answers) == ["lost"] * 5 + ["won"]
        for process in contenders:
            process.communicate("\n", timeout=20)
        assert all(process.returncode == 0 for process in contenders)
    finally:
        for process in contenders:
            process.kill()
            process.wait()


def test_claims_and_releases_of_many_threads_never_overlap(tmp_path: Path) -> None:
    inside, most, wins = [0], [0], [0]

    def work(_: int) -> None:
        for _ in range(15):
            try:
                lease = Lease.claim(tmp_path)
            except RunClaimed:
                continue
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            wins[0] += 1
            lease.check()
            inside[0] -= 1
            lease.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert most[0] == 1
    assert wins[0] > 1


def test_a_contender_that_wakes_up_late_withdraws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It judged lease 4 stale, slept, and meanwhile leases 5 and 6 came and 5 was cleaned up."""
    foreign(tmp_path, age=1000)
    judge = lease_module._refuse_if_held
    others: list[Lease] = []

    def judge_then_sleep(folder: Path, generation: int, interval: float, limit: float) -> None:
        judge(folder, generation, interval, limit)
        if not others:
            others.append(None)  # type: ignore[arg-type]
            Lease.claim(folder, interval=0.05).release()
            others[0] = Lease.claim(folder, interval=0.05)

    monkeypatch.setattr(lease_module, "_refuse_if_held", judge_then_sleep)
    with pytest.raises(RunClaimed):
        Lease.claim(tmp_path, interval=0.05)
    others[0].check()
    time.sleep(0.15)
    others[0].check()
    others[0].release()


def test_the_heart_beats(tmp_path: Path) -> None:
    with Lease.claim(tmp_path, interval=0.05):
        first = holder(tmp_path)
        time.sleep(0.3)
        second = holder(tmp_path)
    assert first is not None
    assert second is not None
    assert second.beat > first.beat
    assert second.token == first.token


def test_a_holder_that_was_taken_over_stops(tmp_path: Path) -> None:
    lease = Lease.claim(tmp_path, interval=0.05)
    own = tmp_path / "lease.1"
    foreign(tmp_path, age=0)
    own.unlink()
    deadline = time.monotonic() + 10
    while not lease.lost and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(LeaseLost, match="taken over"):
        lease.check()
    lease.release()
    found = holder(tmp_path)
    assert found is not None
    assert found.host == "elsewhere"
    assert not found.released
    assert not own.exists()


def test_a_holder_that_was_stopped_notices_before_it_writes(tmp_path: Path) -> None:
    lease = Lease.claim(tmp_path, interval=0.05)
    lease._stop.set()
    lease._thread.join()  # as under SIGSTOP: no heartbeat runs
    foreign(tmp_path, age=0)
    time.sleep(0.1)
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_forked_copy_does_not_release(tmp_path: Path) -> None:
    with Lease.claim(tmp_path) as lease:
        child = os.fork()
        if not child:
            lease.release()
            os._exit(0)
        os.waitpid(child, 0)
        found = holder(tmp_path)
        assert found is not None
        assert not found.released


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".last.ckpt.0a1b2c3d.tmp").write_text("half")
    (tmp_path / "last.ckpt").write_text("whole")
    Lease.claim(tmp_path).release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.ckpt", "lease.1"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReattendError, match="cannot be made"):
        Lease.claim(tmp_path / "file" / "run")


def test_nobody_has_it(tmp_path: Path) -> None:
    assert holder(tmp_path) is None


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_killed_while_it_claims_blocks_nobody(tmp_path: Path, moment: str) -> None:
    """Killed around the linking, it leaves no lease or a whole one, never an empty one."""
    with started(KILLED_WHILE_LINKING, tmp_path, moment) as process:
        process.wait(timeout=20)
    leases = list(tmp_path.glob("lease.*"))
    assert len(leases) == (moment == "after")
    assert all(json.loads(path.read_text())["pid"] == process.pid for path in leases)
    assert list(tmp_path.glob(".lease.1.*.tmp"))
    before = time.monotonic()
    with Lease.claim(tmp_path):
        assert time.monotonic() - before < 1
        assert len(list(tmp_path.iterdir())) == 1


def test_a_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ReattendError, match=r"makes no hard links .*outputs=PATH"):
        Lease.claim(tmp_path)
    assert not list(tmp_path.iterdir())
