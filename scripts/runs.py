"""What runs there are, what can go, what differs, what travels: python scripts/runs.py."""

from __future__ import annotations

import sys

from reattend.pipes import run_command
from reattend.runs.command import main

if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
