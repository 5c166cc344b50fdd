"""The command `scripts/measure.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from reattend.efficiency import (
    measure_framework,
    measure_images,
    measure_language,
    measure_loading,
    measure_mechanisms,
    measure_mixers,
    measure_peers,
    measure_training,
)
from reattend.efficiency.page import Page
from reattend.errors import ReattendError, nearest

MEASURES: Mapping[str, Callable[[Sequence[str]], Page]] = {
    "mixers": measure_mixers.measure_mixers,
    "peers": measure_peers.measure_peers,
    "mechanisms": measure_mechanisms.measure_mechanisms,
    "framework": measure_framework.measure_framework,
    "training": measure_training.measure_training,
    "loading": measure_loading.measure_loading,
    "images": measure_images.measure_images,
    "language": measure_language.measure_language,
    "decoding": measure_language.measure_decoding,
}
_MODULES = (
    measure_mixers,
    measure_peers,
    measure_mechanisms,
    measure_framework,
    measure_training,
    measure_loading,
    measure_images,
    measure_language,
)
USAGE = "\n".join(module.USAGE for module in _MODULES)

_FILE_WIDTH = 140


def main(arguments: Sequence[str]) -> None:
    """Measures what the first argument names, else training where a task is named, else mixers; prints a table."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else 2)
    unnamed = "training" if any(argument.startswith("task=") for argument in arguments) else "mixers"
    what, rest = (unnamed, arguments) if "=" in arguments[0] else (arguments[0], arguments[1:])
    if what not in MEASURES:
        print(f"there is no '{what}' to measure.{nearest(what, MEASURES)}\n{USAGE}", file=sys.stderr)
        sys.exit(2)
    try:
        page = MEASURES[what](rest)
    except ReattendError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    Console(width=None if sys.stdout.isatty() else _FILE_WIDTH).print(page.table())
    sys.exit(1 if page.failed else 0)
