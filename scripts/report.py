"""Results beside a published table: `python scripts/report.py table=primal_dual/table1 rows=softmax,bn scale=quick`."""

from __future__ import annotations

import sys

from reattend.pipes import run_command
from reattend.tables.report import main

if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
