"""Text or pictures from a trained model: `python scripts/generate.py run=outputs/runs/char_lm/... prompt="The "`."""

from __future__ import annotations

from reattend.generation.command import main
from reattend.pipes import run_command

if __name__ == "__main__":
    run_command(main)
