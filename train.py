"""Trains one configuration, or a sweep of them: `python train.py attention=bn_sh task=uea/japanese_vowels`."""

from reattend.pipes import run_command
from reattend.train import main

if __name__ == "__main__":
    run_command(main)
