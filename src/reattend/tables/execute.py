"""Runs what a table lacks, beside other processes that do the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from reattend.config import ConfigError, compose, read
from reattend.data.source import source_of
from reattend.errors import ReattendError
from reattend.tables.cells import cell_overrides, check_metrics
from reattend.tables.launch import launch
from reattend.tables.progress import Progress
from reattend.tables.request import Request
from reattend.tables.results import results_at_hand
from reattend.tables.runs import TableRun, blocked_cells, table_runs
from reattend.tables.worklist import LOG, failures, set_damaged_aside, work_of

_OF_DATA = ("task", "data", "fidelity", "protocol", "recipe", "scale")


@dataclass(frozen=True)
class Outcome:
    """How the wanted runs stand after a launch.

    Attributes:
        runs: all of them, with their states.
        retries: how often a failed one is started again.
    """

    runs: tuple[TableRun, ...]
    retries: int

    @property
    def failed(self) -> list[TableRun]:
        """Runs that are given up."""
        return [run for run in self.runs if is_given_up(run, self.retries)]

    @property
    def left(self) -> list[TableRun]:
        """Runs that the same command would go on with."""
        settled = ("done", "blocked")
        return [run for run in self.runs if run.state not in settled and not is_given_up(run, self.retries)]

    @property
    def lines(self) -> list[str]:
        """What a person has to know: counts, and of each failed run why, its output and its command."""
        done = sum(run.state == "done" for run in self.runs)
        blocked = sum(run.state == "blocked" for run in self.runs)
        counts = [f"{done} of {len(self.runs)} runs done"]
        counts += [f"{len(self.failed)} failed"] if self.failed else []
        counts += [f"{len(self.left)} left, with which the same command goes on"] if self.left else []
        counts += [f"{blocked} blocked"] if blocked else []
        lines = [", ".join(counts) + "."]
        for run in self.failed:
            assert run.folder is not None
            recorded = failures(run.folder)
            lines.append(
                f"{work_of(run).label} failed {len(recorded)} time(s), at last with {recorded[-1].type}: "
                f"{recorded[-1].message}\n  output: {run.folder / LOG}\n  alone:  {run.command}\n"
                f"  to be tried once more: retries={len(recorded)}"
            )
        return lines


def wanted_runs(request: Request) -> list[TableRun]:
    """The wanted runs and their states; results that cannot be read are set aside and named."""
    cells = request.cells()
    runs = table_runs(cells, request.seeds, results_at_hand(cells))
    moved = [
        new for run in runs if run.folder is not None and run.state != "done" for new in set_damaged_aside(run.folder)
    ]
    for path in moved:
        print(f"A damaged file was set aside as {path}; its run goes on from its last checkpoint.")
    return table_runs(cells, request.seeds, results_at_hand(cells)) if moved else runs


def execute(request: Request, retries: int = 2, workers: int | None = None) -> Outcome:
    """Does the wanted runs that are not done, blocked or given up.

    Args:
        request: of the command line.
        retries: how often a run that failed is started again, over all launches.
        workers: in place of the launcher's own number.

    Raises:
        KeyboardInterrupt: told to stop; runs under way have checkpoints.
        ReattendError: no run can go on: the disk is full, there is no SLURM here, ...
    """
    told = _tell_missing_data(request)
    runs = wanted_runs(request)
    for reason, cells in blocked_cells(runs).items():
        if reason not in told:
            print(f"Blocked: {', '.join(cells)}: {reason}")
    for run in runs:
        if run.config is not None and run.config.rerun:
            raise ReattendError(
                f"rerun=true is for single runs: {run.command}. A table is repeated into another folder by "
                "outputs=PATH."
            )
    to_do = [run for run in runs if run.state not in ("done", "blocked") and not is_given_up(run, retries)]
    if to_do:
        for remark in check_metrics(request.table, request.cells()):
            print(f"Note: {remark}")
        works = [work_of(run) for run in to_do]
        config = works[0].config
        launcher = config.launcher if workers is None else replace(config.launcher, workers=workers)
        finished, blocked = (sum(run.state == state for run in runs) for state in ("done", "blocked"))
        name = Path(request.name).stem if Path(request.name).suffix else request.name.replace("/", "-")
        launch(Path(config.outputs, "launches"), name, launcher, Progress(works, retries, finished, blocked))
        runs = wanted_runs(request)
    return Outcome(tuple(runs), retries)


def _tell_missing_data(request: Request) -> set[str]:
    """Says which columns have no data here; at once, before the cells are composed and torch is imported.

    Returns:
        the reasons that were given.
    """
    missing: dict[str, list[str]] = {}
    rows = [request.table.rows[row].overrides for row in request.rows]
    if any(override.lstrip("+~").startswith(_OF_DATA) for overrides in rows for override in overrides):
        return set()  # a column's rows do not have the same data
    for column in request.columns:
        overrides = cell_overrides(request.table, request.rows[0], column, request.extra)
        try:
            config = read(compose(overrides))
        except ConfigError:
            continue  # told with its cell
        try:
            source_of(config).require()
        except ReattendError as error:
            missing.setdefault(str(error), []).append(column)
    for reason, columns in missing.items():
        print(f"Blocked: {', '.join(columns)}: {reason}", flush=True)
    return set(missing)


def is_given_up(run: TableRun, retries: int) -> bool:
    """Whether it has failed too often."""
    return run.state == "failed" and run.folder is not None and len(failures(run.folder)) > retries
