"""The command `train.py`: checks the command line, then runs one configuration or a Hydra multirun."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from reattend.config import check_overrides, check_reach, config_dir, normalise_overrides, split_flags, written_out
from reattend.config.reach import overrides_read
from reattend.errors import ReattendError, RunInterruptedError
from reattend.pipes import leave_if_unread
from reattend.runs.sweep import FAILURES, collected_failures, record_failure
from reattend.search.command import run_searches, validation_metric
from reattend.search.plan import check_extra, plan_searches

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main() -> None:
    """Runs the command line. Exit code 2 for a mistake in it or a run that could not work, 1 for failed sweeps."""
    flags, typed = split_flags(sys.argv[1:])
    multirun = bool({"-m", "--multirun"} & set(flags))
    # A user's own mixer lies beside the command, not in the environment.
    sys.path.insert(0, os.getcwd())
    try:
        overrides = normalise_overrides(written_out(typed))
        sys.argv[1:] = [*flags, *overrides]
        check_extra(flags, overrides)
        check_overrides([*flags, *overrides])
        check_reach([*flags, *typed])
        searches = []
        if not _only_shows(flags):
            _check_writable(overrides)
            searches = plan_searches(flags, overrides)
    except ReattendError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FAILURES] = str(Path(folder, "failures"))
        job = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="train")(_job)
        try:
            if searches:
                run_searches(searches, flags, job)
            else:
                job()
        except ReattendError as error:
            print(error, file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            print("Interrupted; the same command goes on.", file=sys.stderr)
            sys.exit(130)
        finally:
            failures = collected_failures()
            if multirun and failures:
                print(f"\n{len(failures)} run(s) failed:", file=sys.stderr)
                for failure in failures:
                    print(f"  {failure}", file=sys.stderr)
    if failures:
        sys.exit(1 if multirun else 2)


def _only_shows(flags: list[str]) -> bool:
    return bool({"--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--info", "-i"} & set(flags))


def _check_writable(overrides: list[str]) -> None:
    """Makes the folder for runs, which Hydra would answer with a traceback if it cannot."""
    given = [override for override in overrides if override.startswith("outputs=")]
    parsed = OverridesParser.create().parse_overrides(given[-1:])
    folder = Path(str(parsed[0].value()) if parsed else "outputs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReattendError(
            f"outputs={folder} cannot be made: {error.strerror}. Choose another with outputs=."
        ) from None
    if not os.access(folder, os.W_OK):
        raise ReattendError(f"outputs={folder} is not writable. Choose another with outputs=.")


def _job(cfg: DictConfig) -> float | None:
    """Runs one configuration; returns what a search compares, None if there is no such number."""
    from hydra.core.hydra_config import HydraConfig

    from reattend.config import read
    from reattend.data.source import source_of

    try:
        config = read(cfg)
        if config.data.name == "real":
            # Missing data is told before the seconds that importing torch takes.
            source_of(config).require()
        # Imported here, because `train.py --help` answers without torch.
        from reattend.train.run import run

        hydra_config = HydraConfig.get()
        # A trial of a search by Optuna shows what the search selects on, and nothing of test.
        trial = "optuna" in hydra_config.sweeper._target_ and config.protocol.selection == "validation"
        return validation_metric(run(config, hydra_config.overrides.task, trial=trial), config)
    except ReattendError as error:
        print(error, file=sys.stderr)
        record_failure(_command(), error)
        if isinstance(error, RunInterruptedError):
            leave_if_unread()
            sys.exit(130)  # and no further run of a sweep is started
    except Exception as error:
        leave_if_unread()
        traceback.print_exc()
        record_failure(_command(), error)
    return None


def _command() -> str:
    from hydra.core.hydra_config import HydraConfig

    task = [override for override in HydraConfig.get().overrides.task if not override.startswith("search=")]
    return " ".join(["python train.py", *overrides_read(task)])
