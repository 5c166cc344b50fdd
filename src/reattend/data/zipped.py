"""Members of zip archives that are read where they lie: nothing is unpacked, so no path in an archive can do harm."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from reattend.errors import ReattendError


@dataclass(frozen=True)
class ZipMember:
    """A file inside a zip archive, with as much of `Path` as reading needs."""

    archive: Path
    member: str

    def __str__(self) -> str:
        return f"{self.member} in {self.archive}"

    @property
    def name(self) -> str:
        """The file's name without its folders."""
        return self.member.rsplit("/", 1)[-1]

    def stat(self) -> os.stat_result:
        """Of the archive."""
        return self.archive.stat()

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[IO[bytes]]:
        """The content, unpacked while it is read.

        Raises:
            ReattendError: the archive or the member is damaged; it may be found in the middle of reading.
        """
        assert mode == "rb"
        try:
            with zipfile.ZipFile(self.archive) as archive, archive.open(self.member) as file:
                yield file
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise _damaged(self.archive, error) from error


def find_members(archive: Path, names: tuple[str, ...]) -> list[ZipMember]:
    """The members whose file names are `names`, in any folder of the archive; those that it lacks are left out.

    Raises:
        ReattendError: the archive is damaged, or has two files of one name.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.namelist()
    except (zipfile.BadZipFile, EOFError) as error:
        raise _damaged(archive, error) from error
    found = []
    for name in names:
        same = [member for member in members if member.rsplit("/", 1)[-1] == name]
        if len(same) > 1:
            raise ReattendError(
                f"{archive} has {name} more than once: {', '.join(same)}. Unpack the one that is meant."
            )
        found += [ZipMember(archive, member) for member in same]
    return found


def _damaged(archive: Path, error: Exception) -> ReattendError:
    return ReattendError(
        f"{archive} is not a whole zip archive ({error}): it was probably cut off while it was fetched. "
        "Remove it and fetch it again."
    )
