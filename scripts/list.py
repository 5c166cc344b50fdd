"""Lists what there is: `python scripts/list.py [group ...]`."""

from reattend.config.listing import main
from reattend.pipes import run_command

if __name__ == "__main__":
    run_command(main)
