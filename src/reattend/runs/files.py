"""Writing files that are whole or absent."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from reattend.errors import ReattendError

_FLOAT = "$float"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a temporary file beside `path`; what the block has written there becomes `path`.

    Whatever happens, `path` is the old file or the new one, both whole.

    Raises:
        ReattendError: the file cannot be written; the old one is untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        raise ReattendError(_cannot_write(path, error)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a whole file, or leaves the old one.

    Raises:
        ReattendError: the file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files of a writer that was killed; only whoever has claimed `folder` may do so."""
    for temporary in folder.glob(".*.tmp"):
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` atomically as strict JSON; NaN and infinities come back from `read_json` as they were."""
    text = json.dumps(_encode(value), indent=2, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def read_json(path: Path, remedy: str) -> Any:
    """What `write_json` wrote.

    Raises:
        ReattendError: the file is missing, cut off or no JSON; the message ends with `remedy`.
    """
    try:
        return json.loads(path.read_bytes(), object_hook=_decode)
    except FileNotFoundError:
        raise ReattendError(f"{path} does not exist: {remedy}") from None
    except OSError as error:
        raise ReattendError(f"{path} cannot be read ({error.strerror}): {remedy}") from error
    except ValueError as error:
        raise ReattendError(f"{path} is cut off or damaged ({error}): {remedy}") from error


def size_text(number: float) -> str:
    """Bytes as a person reads them."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**29 else f"{number / 2**20:.1f} MiB"


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if isinstance(value, Mapping):
        return {str(key): _encode(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(entry) for entry in value]
    return value


def _decode(value: dict[str, Any]) -> Any:
    return float(value[_FLOAT]) if value.keys() == {_FLOAT} else value


def _cannot_write(path: Path, error: OSError) -> str:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{path} cannot be written: {error.strerror or error}"
    what = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
    existing = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(existing).free / 2**20
    return (
        f"{path} cannot be written: {what} ({free:.1f} MiB free in {existing}). "
        "Free some space, or choose another disk with outputs=PATH, and start the same command again."
    )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
