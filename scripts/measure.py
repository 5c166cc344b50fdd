"""Speed side by side in one run: `python scripts/measure.py mixers` or `python scripts/measure.py framework`."""

from __future__ import annotations

import sys

from reattend.efficiency.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
