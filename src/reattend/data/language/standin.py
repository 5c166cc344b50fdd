"""Small generated texts for trials and tests."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from reattend.data.prepared.standin_root import standin_root
from reattend.errors import ReattendError
from reattend.runs.files import replacing, write_bytes

BYTES = 60_000
_WORDS = (
    "the", "attention", "of", "a", "token", "is", "mean", "all", "values", "that", "its", "key", "and", "query", "let",
    "through", "again",
)  # fmt: skip


def write_text(name: str) -> Path:
    """Writes 60,000 bytes of lines of words, each word the one that a fixed rule lets follow in nine cases of ten.

    Raises:
        ReattendError: the cache cannot be written.
    """
    path = standin_root() / "language" / f"{name}.txt"
    if path.is_file() and path.stat().st_size == BYTES:
        return path
    # A legacy generator, because NumPy keeps its stream the same for ever: the checksum is part of a run's identity.
    random = np.random.RandomState(zlib.crc32(f"language/{name}".encode()))
    pieces, size, number = [], 0, 0
    while size < BYTES:
        number = (3 * number + 1) % len(_WORDS) if random.rand() < 0.9 else random.randint(len(_WORDS))
        pieces.append(_WORDS[number] + ("\n" if random.rand() < 0.1 else " "))
        size += len(pieces[-1])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes("".join(pieces).encode()[:BYTES])
    except OSError as error:
        raise ReattendError(
            f"The stand-in of {name} cannot be written to {path.parent}: {error.strerror or error}. "
            "Set XDG_CACHE_HOME to a folder that can be written."
        ) from error
    return path


def write_words(folder: Path, name: str) -> None:
    """Writes three files as those of WikiText: titles, blank lines and paragraphs of words with blanks between.

    A paragraph is a row of one of 17 words, each followed in nine cases of ten by the one that a fixed rule lets
    follow; one word in fifty is unknown. About 40,000 words for training, 4,000 for validation and 4,000 for test.

    Raises:
        ReattendError: the folder cannot be written.
    """
    random = np.random.RandomState(zlib.crc32(f"language/words/{name}".encode()))
    for split, articles in {"train": 400, "valid": 40, "test": 40}.items():
        lines = []
        for _ in range(articles):
            title, number = _WORDS[random.randint(len(_WORDS))], random.randint(len(_WORDS))
            words = []
            for _ in range(100):
                number = (3 * number + 1) % len(_WORDS) if random.rand() < 0.9 else random.randint(len(_WORDS))
                words.append("<unk>" if random.rand() < 0.02 else _WORDS[number])
            lines += [" ", f" = {title.capitalize()} = ", " ", f" {' '.join(words)} . "]
        write_bytes(folder / f"wiki.{split}.tokens", "".join(f"{line}\n" for line in lines).encode())
