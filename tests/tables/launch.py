"""Launches as processes, of runs that take no training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reattend.config import compose, read, to_dict
from reattend.config.revisions import revisions
from reattend.data.checksum import data_checksum
from reattend.runs.identity import fingerprint, run_folder
from reattend.runs.result import FILE
from reattend.tables.worklist import Work, write_worklist

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_run")

# What scripts/reproduce.py does once it knows the runs, without the seconds that composing a table takes.
COMMAND = """
import json, signal, sys
from pathlib import Path
from reattend.config.schema import LauncherConfig
from reattend.errors import ReattendError
from reattend.tables.launch import launch
from reattend.tables.progress import Progress
from reattend.tables.reproduce import _interrupt
from reattend.tables.worklist import read_worklist

signal.signal(signal.SIGTERM, _interrupt)
works = read_worklist(Path(sys.argv[1]))
launcher = LauncherConfig(**json.loads(sys.argv[2]))
try:
    launch(Path(sys.argv[3]), "test", launcher, Progress(works, int(sys.argv[4]), 0, 0))
except KeyboardInterrupt:
    sys.exit(130)
except ReattendError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
"""


class Launches:
    """Launches on one list of runs, which note in one file what they start and end."""

    def __init__(self, folder: Path, works: Sequence[Work]) -> None:
        self.folder = folder
        self.outputs = folder / "out"
        self.log = folder / "log"
        self.worklist = folder / "worklist.json"
        write_worklist(self.worklist, works)
        self.works = works

    def start(self, kind: str = "local", retries: int = 2, **options: object) -> subprocess.Popen[str]:
        """Starts one; options in capitals are environment variables, the others the launcher's."""
        variables = {name: value for name, value in options.items() if name.isupper()}
        launcher = {"name": kind, "kind": kind} | {n: value for n, value in options.items() if not n.isupper()}
        arguments = [str(self.worklist), json.dumps(launcher), str(self.outputs / "launches"), str(retries)]
        return self._python(["-c", COMMAND, *arguments], variables)

    def command(self, *arguments: str, **variables: object) -> subprocess.Popen[str]:
        """Starts scripts/reproduce.py."""
        return self._python([str(ROOT / "scripts" / "reproduce.py"), *arguments], variables)

    def _python(self, arguments: Sequence[str], variables: Mapping[str, object]) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(FAKE), str(ROOT / "src")])
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ
            | {"PYTHONPATH": paths, "FAKE_LOG": str(self.log), "FAKE_LIST": str(self.worklist), "OMP_NUM_THREADS": "1"}
            | {name: str(value) for name, value in variables.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            start_new_session=True,
        )

    def run(self, kind: str = "local", retries: int = 2, **options: object) -> subprocess.CompletedProcess[str]:
        """Runs one to its end."""
        return ended(self.start(kind, retries, **options))

    def noted(self, word: str) -> list[tuple[int, str]]:
        """Process and run of each "start", "end" or "saved"."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        split = [line.split() for line in lines]
        return [(int(pid), name) for pid, what, name in split if what == word]

    def times(self, word: str) -> Counter[str]:
        """How often each run was started or ended."""
        return Counter(name for _, name in self.noted(word))

    @property
    def results(self) -> list[Path]:
        """Whole results."""
        return [work.folder / FILE for work in self.works if (work.folder / FILE).exists()]


def works(outputs: Path, attentions: Sequence[str], seeds: int, *overrides: str) -> list[Work]:
    """Runs on the stand-in."""
    found = []
    for attention in attentions:
        given = (f"attention={attention}", "task=uea/japanese_vowels", "data=standin", f"outputs={outputs}", *overrides)
        for seed in range(seeds):
            config = read(compose([*given, f"seed={seed}"]))
            plain = to_dict(config)
            name = fingerprint(plain, data_checksum(config), revisions(config))
            folder = run_folder(config.outputs, plain, name)
            found.append(Work(f"{attention} Vowels seed {seed}", folder, config, (*given, f"seed={seed}")))
    return found


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """The process once it has ended."""
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Until `condition()` holds; while `process` goes on."""
    deadline = time.monotonic() + 300
    while not condition():
        assert process is None or process.poll() is None, ended(process)
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)
