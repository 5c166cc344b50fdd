"""What both generators share: work in blocks over processes, and a folder that says how its files were made."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from reattend.data.prepared.arrays import digest
from reattend.errors import ReattendError

RECORD = "generated.json"
_CPU_LIMIT = 16
_TEMPORARY = ".generating-"

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None) -> Generator[Result]:
    """Results of `function` in the order of `tasks`, which may be endless, from so many processes.

    Only a few tasks per process are ahead of the reader. None means one process per CPU that this process may use, at
    most 16; 1 means this process.
    """
    if workers is None:
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(cpus, _CPU_LIMIT)
    if workers <= 1:
        yield from map(function, tasks)
        return
    waiting: deque[Future[Result]] = deque()
    remaining = iter(tasks)
    # Not by fork: the caller may have threads of torch running.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        try:
            waiting.extend(pool.submit(function, task) for task in itertools.islice(remaining, 2 * workers))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(function, task) for task in itertools.islice(remaining, 1))
                yield result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """Without this a worker of a process that is killed waits for work for ever."""
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def is_whole(folder: Path, made_by: dict[str, Any]) -> bool:
    """Whether the folder holds the files that this rule and these options give, each as it was made.

    Raises:
        ReattendError: files of another rule or other options lie there.
    """
    found, files = _record(folder)
    if not files:
        return False
    if found != made_by:
        differs = ", ".join(
            f"{key}={found.get(key)} where {made_by.get(key)} is wanted"
            for key in sorted({*found, *made_by})
            if found.get(key) != made_by.get(key)
        )
        raise ReattendError(
            f"{folder} holds generated data of other options: {differs}. Choose another folder, or delete this one."
        )
    return not any(_differs(folder / name, file) for name, file in files.items())


def unfit(folder: Path) -> list[str]:
    """Names of the generated files that are missing or not as they were made; of a person's files none.

    Raises:
        ReattendError: the record of what was generated cannot be read.
    """
    return [name for name, file in _record(folder)[1].items() if _differs(folder / name, file)]


def _record(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Rule and options, and size and SHA-256 of each file; both empty where nothing was generated."""
    record = folder / RECORD
    if not record.is_file():
        return {}, {}
    try:
        found = json.loads(record.read_text())
        files = found.pop("files")
        facts = {str(name): {"size": file["size"], "sha256": file["sha256"]} for name, file in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReattendError(f"{record} cannot be read ({error}). Delete it and start again.") from error
    return found, facts


def _differs(path: Path, made: dict[str, Any]) -> bool:
    # The size first: it costs nothing.
    return not path.is_file() or path.stat().st_size != made["size"] or digest(path) != made


@contextmanager
def writing(folder: Path, made_by: dict[str, Any], names: Iterable[str]) -> Iterator[Path]:
    """A temporary folder to write the files in; afterwards they are moved into `folder`, the record last.

    The record, `generated.json`, holds the rule and its options and each file's size and SHA-256. A folder without it
    holds a person's files, which are never written over. The caller has to keep other writers away.

    Raises:
        ReattendError: a person's file of one of these names lies there, or the folder cannot be written.
    """
    names = list(names)
    theirs = [name for name in names if (folder / name).exists()]
    if theirs and not (folder / RECORD).is_file():
        raise ReattendError(
            f"{folder / theirs[0]} was not generated here (there is no {RECORD} beside it) and is not written over. "
            "Move it away to generate the set, or put the other files of the set beside it."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_TEMPORARY}*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=_TEMPORARY) as temporary:
            yield Path(temporary)
            files = {name: digest(Path(temporary) / name) for name in names}
            for name in names:
                (Path(temporary) / name).replace(folder / name)
            record = Path(temporary) / RECORD
            record.write_text(json.dumps({**made_by, "files": files}, indent=1) + "\n")
            record.replace(folder / RECORD)
    except OSError as error:
        raise ReattendError(
            f"Generated data cannot be written to {folder}: {error.strerror or error}. "
            "Set data.root to a folder that can be written and has the room."
        ) from error
