"""Runs a published table: `python scripts/reproduce.py table=primal_dual/table1 scale=quick plan=true`."""

from __future__ import annotations

import sys

from reattend.pipes import run_command
from reattend.tables.reproduce import main

if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
