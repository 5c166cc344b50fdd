"""Checkpoints that are whole or absent, hold plain data only, and know the run they belong to."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reattend.errors import ReattendError
from reattend.runs.files import replacing

FORMAT = 1
_STAMP = "reattend"
_REMEDY = "Delete the file to start the run anew, or add rerun=true to the command."


@contextmanager
def replace_checkpoint(path: Path, fingerprint: str) -> Iterator[Path]:
    """Yields where the block writes the new checkpoint (any `torch.save`), then stamps it and renames it to `path`.

    In a distributed run all processes enter it, and the first one writes.

    Raises:
        ReattendError: the file cannot be written; the last checkpoint is untouched.
    """
    if not _is_first_process():
        yield path
        return
    with replacing(path) as temporary:
        yield temporary
        # The stamp is one more entry of the archive that torch.save writes, so it does not meddle with the content.
        with zipfile.ZipFile(temporary, "a") as archive:
            folder = archive.namelist()[0].partition("/")[0]
            archive.writestr(f"{folder}/{_STAMP}", json.dumps({"format": FORMAT, "fingerprint": fingerprint}))


def check_checkpoint(path: Path, fingerprint: str) -> dict[str, Any]:
    """Content of a checkpoint of this run, with all tensors on the CPU.

    Raises:
        ReattendError: the file is missing, damaged, or belongs to something else than this run.
    """
    content = read_torch(path, _REMEDY)
    with zipfile.ZipFile(path) as archive:
        stamps = [name for name in archive.namelist() if name.endswith(f"/{_STAMP}")]
        stamp = json.loads(archive.read(stamps[0])) if stamps else None
    if not isinstance(content, dict) or stamp is None:
        raise ReattendError(f"{path} is no checkpoint of reattend. {_REMEDY}")
    if stamp["format"] != FORMAT:
        raise ReattendError(f"{path} has checkpoint format {stamp['format']}, this code reads {FORMAT}. {_REMEDY}")
    if stamp["fingerprint"] != fingerprint:
        raise ReattendError(
            f"{path} belongs to a run with fingerprint {stamp['fingerprint']}, this one has {fingerprint}: "
            f"its configuration, data or code revision is another. {_REMEDY}"
        )
    return content


def write_torch(path: Path, content: Any) -> None:
    """`torch.save`, atomically.

    Raises:
        ReattendError: the file cannot be written; the old one is untouched.
    """
    import torch

    # Through a file object: torch's own writer turns a full disk into a RuntimeError without a cause.
    with replacing(path) as temporary, open(temporary, "wb") as file:
        torch.save(content, file)


def read_torch(path: Path, remedy: str) -> Any:
    """`torch.load` of tensors and plain data onto the CPU, after all checksums in the file were compared.

    Raises:
        ReattendError: the file is missing, damaged, or would run code when loaded; the message ends with `remedy`.
    """
    import torch

    try:
        # torch.load itself does not notice a changed byte inside a tensor.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ReattendError(f"{path} is damaged: the checksum of its entry {damaged} is wrong. {remedy}")
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ReattendError(f"{path} does not exist. {remedy}") from None
    except zipfile.BadZipFile as error:
        raise ReattendError(f"{path} is cut off, or was not written by torch.save ({error}). {remedy}") from error
    except pickle.UnpicklingError as error:
        raise ReattendError(
            f"{path} holds other objects than tensors and plain data, which could run code, and is not loaded. {remedy}"
        ) from error
    except (OSError, RuntimeError, ValueError, EOFError, LookupError, NotImplementedError) as error:
        raise ReattendError(f"{path} cannot be read ({type(error).__name__}: {error}). {remedy}") from error


def _is_first_process() -> bool:
    import torch.distributed

    return (
        not torch.distributed.is_available()
        or not torch.distributed.is_initialized()
        or not torch.distributed.get_rank()
    )
