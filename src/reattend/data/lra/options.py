"""How prepared samples are loaded: the options of `LRAData` that are not of a set's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from reattend.config.limits import Count, Limit
from reattend.data.lra.raw import STORED_BYTES

TextBytes = Annotated[int, Limit("at least", 1), Limit("at most", STORED_BYTES)]
BlackPixels = Literal["padding", "pixels"]
LastTestBatch = Literal["dropped", "kept"]
PadTo = Literal["max_length", "batch"]


@dataclass(frozen=True)
class Loading:
    """See `LRAData`. Apart from it, because importing that takes seconds."""

    max_length: Count
    text_bytes: TextBytes | None = None
    black_pixels: BlackPixels = "pixels"
    last_test_batch: LastTestBatch = "kept"
    pad_to: PadTo = "max_length"
