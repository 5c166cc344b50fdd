"""How far a launch is, read from the folders of its runs: a view on a terminal, a line for each event elsewhere."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from reattend.errors import ReattendError, RunInterruptedError
from reattend.runs.lease import holder
from reattend.runs.metrics import FILE as METRICS
from reattend.runs.metrics import read_metrics
from reattend.runs.process import is_running, place
from reattend.runs.result import read_result
from reattend.runs.status import read_status
from reattend.tables.worklist import Work, failures, is_done

INTERVAL = 2.0  # seconds between two looks

State = Literal["waiting", "running", "interrupted", "done", "failed"]


@dataclass(frozen=True)
class Seen:
    """A run at one look.

    Attributes:
        state: "failed" is given up; a run that failed and will be tried again is waiting; "interrupted" was started and
            has no process.
        epoch, epochs: evaluated so far, and to be trained.
        seconds: of training, when it is done.
        told: the metric of the last evaluation, or why it failed.
    """

    state: State
    epoch: int = 0
    epochs: int = 1
    seconds: float = 0.0
    told: str = ""


class Progress:
    """What is done of a launch's runs."""

    def __init__(self, works: Sequence[Work], retries: int, finished_before: int, blocked: int) -> None:
        self.works = works
        self.retries = retries
        self.finished_before = finished_before
        self.blocked = blocked
        self.seen: dict[Path, Seen] = {work.folder: Seen("waiting") for work in works}

    def look(self) -> list[str]:
        """Reads all that is not settled again; returns a line for each run that has changed its state."""
        events = []
        for work in self.works:
            before = self.seen[work.folder]
            if before.state in ("done", "failed"):
                continue
            now = self.seen[work.folder] = _look_at(work, self.retries)
            taken_up_later = (before.state, now.state) == ("waiting", "interrupted")  # by an earlier launch
            if now.state != before.state and not taken_up_later:
                events.append(self._event(work, now))
        return events

    def count(self, state: State) -> int:
        """Runs of this launch in a state."""
        return sum(seen.state == state for seen in self.seen.values())

    @property
    def summary(self) -> str:
        """Counts and time left, in a line."""
        total = len(self.works) + self.finished_before
        parts = [f"{self.count('done') + self.finished_before} of {total} done", f"{self.count('running')} running"]
        parts += [f"{self.count('failed')} failed"] if self.count("failed") else []
        parts += [f"{self.blocked} blocked"] if self.blocked else []
        left = self.seconds_left()
        parts += [f"about {duration(left)} left"] if left else []
        return ", ".join(parts)

    def seconds_left(self) -> float | None:
        """By the mean of this launch's finished runs of the same task, else of all; None before one is finished."""
        done = [(work.config.task.name, self.seen[work.folder].seconds) for work in self.works if self._is_done(work)]
        if not done:
            return None
        seconds = 0.0
        for work in self.works:
            seen = self.seen[work.folder]
            if seen.state not in ("done", "failed"):
                alike = [spent for task, spent in done if task == work.config.task.name]
                seconds += statistics.mean(alike or [spent for _, spent in done]) * (1 - seen.epoch / seen.epochs)
        return seconds / max(self.count("running"), 1)

    def _is_done(self, work: Work) -> bool:
        return self.seen[work.folder].state == "done"

    def _event(self, work: Work, now: Seen) -> str:
        told = f": {now.told}" if now.told else ""
        spent = f", {duration(now.seconds)}" if now.state == "done" else ""
        word = "waits to be tried again" if now.state == "waiting" else now.state
        return f"{work.label} {word}{told}{spent}  ({self.summary})"


@contextlib.contextmanager
def shown(progress: Progress) -> Iterator[None]:
    """Shows the progress while the block runs, on what standard output is now, whatever is done to it later."""
    with os.fdopen(os.dup(1), "w") as stream, contextlib.ExitStack() as stack:
        console = Console(file=stream, highlight=False, soft_wrap=not stream.isatty())
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if console.is_terminal else None
        ended = threading.Event()
        thread = threading.Thread(target=_watch, args=(progress, console, live, ended), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _watch(progress: Progress, console: Console, live: Live | None, ended: threading.Event) -> None:
    while True:
        last = ended.is_set()
        for line in progress.look():
            console.print(Text(line), soft_wrap=True)
        console.file.flush()
        if live is not None:
            live.update(_view(progress), refresh=True)
        if last:
            return
        ended.wait(INTERVAL)


def _view(progress: Progress) -> Group:
    total = len(progress.works) + progress.finished_before
    completed = progress.count("done") + progress.finished_before
    overall = Table.grid()  # a bar alone ends no line
    overall.add_row(ProgressBar(total=max(total, 1), completed=completed, width=60))
    rows = Table.grid(Column(no_wrap=True), Column(), Column(no_wrap=True), Column(), padding=(0, 2))
    for work in progress.works:
        seen = progress.seen[work.folder]
        if seen.state == "running":
            bar = ProgressBar(total=seen.epochs, completed=seen.epoch, width=20)
            rows.add_row(work.label, bar, f"epoch {seen.epoch}/{seen.epochs}", seen.told)
    return Group(overall, Text(progress.summary), rows)


def _look_at(work: Work, retries: int) -> Seen:
    epochs = work.config.recipe.epochs
    if is_done(work.folder):
        result = read_result(work.folder)
        metric = f"test/{work.config.task.metric}"
        value = result.metrics["last"].metrics.get(metric)
        return Seen("done", epochs, epochs, result.seconds, "" if value is None else f"{metric} {value:.4f} (last)")
    failed = failures(work.folder)
    if len(failed) > retries:
        return Seen("failed", told=f"{failed[-1].type}: {failed[-1].message}")
    epoch, told = _reached(work)
    reached = min(epoch, epochs)
    try:
        status = read_status(work.folder)
    except ReattendError:
        status = None
    if status is None or status.state == "planned":
        return Seen("waiting", reached, epochs)
    if status.state == "running" and _has_process(work.folder):
        return Seen("running", reached, epochs, told=told)
    if status.error is not None and status.error["type"] != RunInterruptedError.__name__:
        return Seen("waiting", reached, epochs, told=f"{status.error['type']}: {status.error['message']}")
    return Seen("interrupted", reached, epochs, told=f"after epoch {reached} of {epochs}; it can go on")


def _has_process(folder: Path) -> bool:
    owner = holder(folder)
    if owner is None or owner.released:
        return False
    return owner.place != place() or is_running(owner.pid, owner.process_start) is not False


def _reached(work: Work) -> tuple[int, str]:
    """The last epoch with a metric, and the watched metric there."""
    if not (work.folder / METRICS).exists():
        return 0, ""
    try:
        rows = read_metrics(work.folder / METRICS)
    except ReattendError:
        return 0, ""
    watched = [row for row in rows if row.metric.partition("/")[2] == work.config.task.metric]
    return max(
        (row.epoch for row in rows), default=0
    ), f"{watched[-1].metric} {watched[-1].value:.4f}" if watched else ""


def duration(seconds: float) -> str:
    """As a person says it: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
