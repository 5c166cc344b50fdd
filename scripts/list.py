"""Lists what there is: `python scripts/list.py [group ...]`."""

import sys

from reattend.config.listing import main

if __name__ == "__main__":
    sys.exit(main())
