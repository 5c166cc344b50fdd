"""Writing pictures, and colours that everybody can tell apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from reattend.efficiency.page import check_writable
from reattend.errors import ReattendError, nearest
from reattend.runs.files import replacing

FORMATS = ("svg", "png", "pdf")
# Okabe and Ito's palette without its yellow, which is too pale for a line on white.
OKABE_ITO = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINE_STYLES = ("-", "--", "-.", ":")


def line_looks() -> Iterator[tuple[str, str]]:
    """Colour and line style of one line after the other; the first 28 pairs differ."""
    return zip(itertools.cycle(OKABE_ITO), itertools.cycle(LINE_STYLES), strict=False)


def check_figure_file(option: str, path: Path) -> None:
    """Tries whether a picture could be written.

    Raises:
        ReattendError: `option=path` has no ending of `FORMATS`, or cannot be written.
    """
    ending = path.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise ReattendError(f"{option}={path}: a picture ends with .{', .'.join(FORMATS)}.{nearest(ending, FORMATS)}")
    check_writable(option, path)


def write_figure(path: Path, figure: Figure) -> None:
    """Writes a whole file of the format that its ending says, the same bytes for the same figure.

    Raises:
        ReattendError: the file cannot be written.
    """
    ending = path.suffix.removeprefix(".").lower()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.hashsalt": "reattend"}), replacing(path) as temporary:
        figure.savefig(temporary, format=ending, dpi=130, metadata=dates.get(ending))
