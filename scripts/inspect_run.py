"""A picture of what a run has learned: `python scripts/inspect_run.py run=FOLDER show=biases out=FILE.svg`."""

from reattend.analysis.command import main
from reattend.pipes import run_command

if __name__ == "__main__":
    run_command(main)
