"""Text or pictures from a trained model: `python scripts/generate.py run=outputs/runs/char_lm/... prompt="The "`."""

from __future__ import annotations

import sys

from reattend.generation.command import main

if __name__ == "__main__":
    sys.exit(main())
