"""A picture of what a run has learned: `python scripts/inspect_run.py run=FOLDER show=biases out=FILE.svg`."""

import sys

from reattend.analysis.command import main

if __name__ == "__main__":
    sys.exit(main())
