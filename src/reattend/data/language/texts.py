"""Which text a name stands for."""

from __future__ import annotations

from pathlib import Path

from reattend.data.language.corpus import Bytes, Text
from reattend.data.language.words import WordFiles, Words
from reattend.errors import ReattendError, nearest

BY_BYTES = ("enwik8", "file")
BY_WORDS = ("wikitext103", "words")


def make_text(dataset: str | None, root: str | Path, file: str | None, standin: bool) -> Text:
    """The text of that name: by bytes "enwik8" or "file", by words "wikitext103" or "words", which are of `file`.

    Raises:
        ReattendError: there is no such text, or a file is named and a stand-in wanted.
    """
    if standin and file is not None:
        raise ReattendError(f"task.data_options.file={file} is not read with data=standin: leave out one of them.")
    own = None if file is None else Path(file).expanduser().absolute()
    place = Path(root).expanduser().absolute()
    if dataset in BY_BYTES:
        return Bytes(dataset, place, own, standin)
    if dataset in BY_WORDS:
        return Words(WordFiles.of(dataset, place, own, standin), standin)
    raise ReattendError(
        f"task.dataset={dataset}: texts by bytes are {' and '.join(BY_BYTES)}, by words {' and '.join(BY_WORDS)}."
        f"{nearest(str(dataset), [*BY_BYTES, *BY_WORDS])}"
    )
