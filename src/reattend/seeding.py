"""Independent random streams from one seed."""

from __future__ import annotations

import hashlib


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, such as `derive(seed, "dropout", epoch, batch)`.

    Streams of different purposes are independent, and a stream does not move when another is used more or less. The
    value is the same on every machine and whatever the hash seed.
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
