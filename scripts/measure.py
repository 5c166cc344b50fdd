"""Speed and memory side by side in one run: `python scripts/measure.py --help` says of what."""

from __future__ import annotations

import sys

from reattend.efficiency.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
