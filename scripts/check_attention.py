"""Checks a mechanism: `python scripts/check_attention.py attention=custom attention.target=my_module.MyMixer`."""

import sys

from reattend.conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
