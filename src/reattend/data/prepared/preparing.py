"""From raw files to prepared arrays: made once, however many processes want them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from reattend.data.prepared.arrays import MANIFEST, Block, Prepared, damaged, open_prepared, write_prepared
from reattend.data.prepared.raw_files import Progress, RawFiles
from reattend.data.prepared.standin_root import standin_root
from reattend.errors import ReattendError
from reattend.runs.lease import Lease, RunClaimed

_PAUSE = 0.2  # seconds between looks at another process

Say = Callable[[str], None]
R = TypeVar("R", bound=RawFiles)


def opened(raw: RawFiles) -> Prepared:
    """The prepared arrays of a set.

    Raises:
        ReattendError: they are not there or not whole; the message says what to do.
    """
    _check_place(raw)
    if not (raw.prepared / MANIFEST).is_file():
        raw.sources()
        raise ReattendError(f"The files of {raw.label} are in {raw.folder}, but not prepared yet: {raw.command}")
    return open_prepared(raw.prepared, f"prepare the data again: {raw.command}")


def stand_in(raw: R, write: Callable[[R], None]) -> Prepared:
    """The prepared arrays of a stand-in, made if they are not there; `write` writes its raw files.

    Raises:
        ReattendError: they cannot be written.
    """
    _check_place(raw)
    try:
        return open_prepared(raw.prepared, "")
    except ReattendError:
        with _alone(raw, _mute):
            if _whole(raw, _mute) is None:
                write(raw)
                _convert(raw, _no_progress)
        return open_prepared(raw.prepared, "")


def prepare(raw: RawFiles, say: Say, progress: Progress) -> Prepared:
    """Gets the raw files as far as possible, checks them and makes the arrays; verifies those that are there already.

    Raises:
        ReattendError: raw files are missing or damaged, or nothing can be written.
    """
    _check_place(raw)
    if not (raw.prepared / MANIFEST).is_file() and _missing(raw) and not raw.obtainable():
        raw.sources()  # says what is missing, before folders are made for it
    with _alone(raw, say):
        prepared = _whole(raw, say)
        if prepared is not None:
            gone = "; the raw files that it was made of are not all there" if _missing(raw) else " and whole"
            say(f"{raw.label}: prepared already{gone}, {raw.prepared}")
            return prepared
        unfit = raw.unfit()
        if unfit:
            say(f"{', '.join(unfit)} of {raw.label} missing or not as generated: generated again")
        if unfit or (_missing(raw) and raw.obtainable()):
            raw.obtain(progress)
        prepared = _convert(raw, progress)
        told = ", ".join(f"{split} {size:,}" for split, size in prepared.sizes.items())
        say(f"{raw.label}: prepared, {told}, {raw.prepared}")
        return prepared


def _whole(raw: RawFiles, say: Say) -> Prepared | None:
    """What was prepared before, if it is not damaged and its raw files have not changed since."""
    if not (raw.prepared / MANIFEST).is_file():
        return None
    try:
        prepared = open_prepared(raw.prepared, "it is made again")
    except ReattendError as error:
        say(str(error))
        return None
    for name in damaged(prepared):
        say(f"{raw.prepared / name} is damaged (its SHA-256 is not that of the manifest): it is made again")
        return None
    if _missing(raw):
        return prepared  # a person may delete the raw files when they are not needed any more
    before = prepared.manifest["sources"]
    changed = [name for name, facts in raw.describe(raw.sources()).items() if before.get(name) != facts]
    if changed:
        say(f"{', '.join(changed)} of {raw.label} changed since it was prepared: it is made again")
        return None
    return prepared


def _convert(raw: RawFiles, progress: Progress) -> Prepared:
    sources = raw.sources()
    total, done = sum(raw.samples.values()), 0

    def counted(blocks: Iterable[Block]) -> Iterator[Block]:
        nonlocal done
        for block in blocks:
            yield block
            done += len(block.labels)
            progress(done, total)

    splits = {split: counted(raw.blocks(split, sources)) for split in raw.samples}
    return write_prepared(raw.prepared, raw.facts(sources), raw.describe(sources), splits)


def _missing(raw: RawFiles) -> bool:
    try:
        raw.sources()
    except ReattendError:
        return True
    return False


def _check_place(raw: RawFiles) -> None:
    """Refuses a folder of data that cannot be one.

    Raises:
        ReattendError: it, or what it lies in, is a file or a link to nothing.
    """
    for place in reversed([raw.folder, *raw.folder.parents]):
        if place.is_symlink() and not place.exists():
            raise ReattendError(f"{place} is a link to nothing. {_elsewhere(raw)}")
        if place.exists() and not place.is_dir():
            raise ReattendError(f"{place} is a file, no folder. {_elsewhere(raw)}")


def _elsewhere(raw: RawFiles) -> str:
    if standin_root() not in raw.prepared.parents:
        return f"Its data is looked for in data.root={raw.root}: choose a folder with data.root=PATH."
    return "Stand-ins go there: set XDG_CACHE_HOME to a folder that can be written."


def _alone(raw: RawFiles, say: Say) -> Lease:
    """A claim on the set, waited for while another process works on it."""
    told = False
    while True:
        try:
            return Lease.claim(raw.prepared.with_name(".claim"))
        except RunClaimed:
            if not told:
                say(f"Another process prepares {raw.label}: waiting for it.")
                told = True
            time.sleep(_PAUSE)
        except ReattendError as error:
            raise ReattendError(f"{error}. {_elsewhere(raw)}") from error


def _mute(line: str) -> None:
    pass


def _no_progress(done: int, total: int) -> None:
    pass
