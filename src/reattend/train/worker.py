"""One run in a process of its own: `python -m reattend.train.worker <configuration>`.

Lightning starts the further processes of a run on several devices by repeating the command line. This one names a
saved configuration, so that repeating it never walks a sweep again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from reattend.config import from_file
from reattend.errors import ReattendError
from reattend.runs.process import end_with_parent
from reattend.train.execute import execute, plan


def main() -> None:
    """Runs the saved configuration; exit code 2 for an error that the run's status names."""
    end_with_parent(signal.SIGKILL)  # it must not hold the folder's lease alone
    try:
        config = from_file(Path(sys.argv[1]))
        execute(plan(config), leader=os.environ.get("LOCAL_RANK", "0") == "0")
    except ReattendError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
