"""What runs there are, what can go, what differs, what travels: python scripts/runs.py."""

from __future__ import annotations

import sys

from reattend.runs.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
