"""Gets, generates, verifies and converts data: `python scripts/prepare_data.py task=lra/text` (or lra, uea, all)."""

from __future__ import annotations

from reattend.data.prepare import main
from reattend.pipes import run_command

if __name__ == "__main__":
    run_command(main)
