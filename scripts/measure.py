"""Speed and memory side by side in one run: `python scripts/measure.py --help` says of what."""

from __future__ import annotations

import sys

from reattend.efficiency.command import main
from reattend.pipes import run_command

if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
