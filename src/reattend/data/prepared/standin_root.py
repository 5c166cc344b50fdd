"""Where generated stand-ins lie."""

from __future__ import annotations

import os
from pathlib import Path

_RULES = 1  # raised when the rule of any stand-in changes


def standin_root() -> Path:
    """Folder of all stand-ins: `$XDG_CACHE_HOME/reattend/standin-1` (`~/.cache` without that variable).

    Its name has the number of the rules.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reattend" / f"standin-{_RULES}"
