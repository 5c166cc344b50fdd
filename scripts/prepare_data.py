"""Gets, generates, verifies and converts data: `python scripts/prepare_data.py task=lra/text` (or lra, uea, all)."""

from __future__ import annotations

import sys

from reattend.data.prepare import main

if __name__ == "__main__":
    sys.exit(main())
