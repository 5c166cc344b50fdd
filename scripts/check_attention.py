"""Checks a mechanism: `python scripts/check_attention.py attention=custom attention.target=my_module.MyMixer`."""

from reattend.conformance.command import main
from reattend.pipes import run_command

if __name__ == "__main__":
    run_command(main)
