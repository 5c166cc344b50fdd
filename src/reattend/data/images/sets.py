"""Sets of images by name: where their files are, in which form, and which classes are meant."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reattend.data.images.encoded import EncodedFiles
from reattend.data.images.hub import HubTables
from reattend.data.images.known import KNOWN, KnownSet
from reattend.data.images.shards import TarShards
from reattend.data.images.small import SmallSet
from reattend.data.images.standin import rule_checksum, write_stand_in
from reattend.data.images.stored import Classes, Encoded, OpenedImages
from reattend.data.images.tree import ImageTree
from reattend.data.prepared.arrays import Prepared
from reattend.data.prepared.preparing import opened, prepare, stand_in
from reattend.data.prepared.standin_root import standin_root
from reattend.errors import ReattendError, nearest

Form = Literal["imagefolder", "hub", "tar_shards", "fashion_mnist", "cifar10"]

FORMS: dict[str, type[EncodedFiles]] = {kind.form: kind for kind in (ImageTree, HubTables, TarShards)}
SMALL = ("fashion_mnist", "cifar10")
_OWN_TASK = "imagenet/deit_tiny"


@dataclass(frozen=True)
class ImageSet:
    """A set of images on this machine, real or stand-in; making one reads nothing.

    Attributes:
        name: of the set.
        root: folder of all data.
        standin: whether it is generated.
        form: of the files; None is the one that is there.
        class_list: file with the names of the classes that are used, one a line; a relative path is below `root`.
    """

    name: str
    root: Path
    standin: bool
    form: Form | None = None
    class_list: str | None = None

    @property
    def known(self) -> KnownSet | None:
        """What is known of the set."""
        return KNOWN.get(self.name)

    @property
    def in_memory(self) -> bool:
        """Whether there is nothing to decode."""
        return self.name in SMALL

    def require(self) -> None:
        """Finds the files, and what was prepared of them.

        Raises:
            ReattendError: they are not there; the message says how to get them.
        """
        if self.in_memory:
            self._small().find()
        else:
            self._prepared()
            self._listed()

    def open(self) -> OpenedImages:
        """Reads arrays, or what was prepared of encoded images.

        Raises:
            ReattendError: as `require`, or files are damaged.
        """
        if self.in_memory:
            return self._small().open()
        raw, prepared = self._prepared()
        splits: dict[str, Encoded] = {split: raw.open_split(prepared, split) for split in prepared.sizes}
        classes = tuple(prepared.manifest["classes"])
        # JPEGs of one rule have other sizes where another library wrote them.
        checksum = rule_checksum(raw.name) if self.standin else prepared.checksum
        listed = self._listed()
        if listed is not None:
            codes = _codes(listed, classes, raw)
            splits = {split: Classes(whole, codes) for split, whole in splits.items()}
            classes = tuple(sorted(listed))
            checksum = hashlib.sha256(json.dumps([checksum, classes]).encode()).hexdigest()
        for split, stored in splits.items():
            if len(stored) == 0 or stored.labels.max() >= len(classes):
                raise ReattendError(
                    f"{split} of {raw.folder} has {len(stored)} images of classes 0 to {max(stored.labels, default=0)},"
                    f" and training has {len(classes)} classes: they do not belong together. Check both, then: "
                    f"{raw.command}"
                )
        return OpenedImages(splits, classes, checksum, raw.form)

    def prepare(self, say: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
        """Gets what can be fetched, and lists encoded images; `open` then works.

        Raises:
            ReattendError: files are missing or damaged, or nothing can be written.
        """
        if not self.in_memory:
            if self.standin:
                self._prepared()
            else:
                prepare(self._files(), say, progress)
            return
        small = self._small()
        try:
            small.find()
        except ReattendError:
            if self.standin:
                raise
            small.obtain()
            small.find()

    def _small(self) -> SmallSet:
        if self.form not in (None, self.name):
            raise ReattendError(f"task.data_options.form={self.form}: {self.name} has the form {self.name} alone.")
        if self.class_list is not None:
            raise ReattendError(f"task.data_options.class_list: {self.name} is used with all of its ten classes.")
        root = self._root()
        small = SmallSet(self.name, root, not self.standin)
        if self.standin:
            write_stand_in(self.name, root)
        return small

    def _prepared(self) -> tuple[EncodedFiles, Prepared]:
        if not self.standin:
            raw = self._files()
            return raw, opened(raw)
        raw = self._as(ImageTree, self._root() / self._folders()[0])
        return raw, stand_in(raw, lambda files: write_stand_in(files.name, files.root))

    def _root(self) -> Path:
        return standin_root() / "images" if self.standin else self.root

    def _folders(self) -> tuple[str, ...]:
        return self.known.folders if self.known else (self.name,)

    def _files(self) -> EncodedFiles:
        """The files that are there.

        Raises:
            ReattendError: none are, or of two forms, or not of the form that is wanted.
        """
        if self.form in SMALL:
            raise ReattendError(f"task.data_options.form={self.form}: {self.name} may be {', '.join(FORMS)}.")
        for name in self._folders():
            folder = self.root / name
            found = [kind for kind in FORMS.values() if kind.is_in(folder) and self.form in (None, kind.form)]
            if len(found) > 1:
                forms = " and ".join(kind.form for kind in found)
                raise ReattendError(
                    f"{folder} has images as {forms}. Say which are meant: "
                    + " or ".join(f"task.data_options.form={kind.form}" for kind in found)
                )
            if found:
                return self._as(found[0], folder)
        raise self._missing()

    def _as(self, kind: type[EncodedFiles], folder: Path) -> EncodedFiles:
        # Of the whole of ImageNet there is one list, whichever of its classes a task wants.
        owner = KNOWN.get(folder.name)
        known = self.known or owner
        task = known.task if known else f"{_OWN_TASK} task.dataset={self.name}"
        return kind(folder, not self.standin, folder.name, task, owner.sizes if owner else {})

    def _missing(self) -> ReattendError:
        known = self.known
        meanwhile = "the same task runs" if known else f"task={_OWN_TASK} runs"
        form = "" if self.form is None else f" as {self.form}"
        hint = "" if known else nearest(self.name, KNOWN)
        folders = "\n".join(f"  {self.root / name}" for name in self._folders())
        source = known.source if known else "It is no set that is known here: put images of your own there."
        task = known.task if known else f"{_OWN_TASK} task.dataset={self.name}"
        return ReattendError(
            f"The data of {self.name} is not on this machine{form}.{hint}\nWanted: one of\n"
            "  train/<class>/*.JPEG and val/<class>/*.JPEG                      (imagefolder)\n"
            "  parquet/{train,validation}-*.parquet, or what save_to_disk wrote (hub)\n"
            "  shards/{train,val}-*.tar with <key>.jpg and <key>.cls            (tar_shards)\n"
            f"in\n{folders}\n{source}\nThen: python scripts/prepare_data.py task={task} data.root={self.root}\n"
            f"Meanwhile {meanwhile} on a small generated stand-in: add data=standin."
        )

    def _listed(self) -> list[str] | None:
        """Names in the class list."""
        if self.class_list is None:
            return None
        path = self._root() / Path(self.class_list).expanduser()
        try:
            names = [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ReattendError(
                f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): it has to name the classes of "
                f"{self.name}, one a line, as their folders are called (n01558993, ...). For ImageNet-100 that is "
                "IN100.txt of https://github.com/danielchyeh/ImageNet-100-Pytorch; put it there, or say where it is "
                "with task.data_options.class_list=<file>."
            ) from error
        twice = {name for name in names if names.count(name) > 1}
        if len(names) < 2 or twice:
            what = f"names {', '.join(sorted(twice))} twice" if twice else f"names {len(names)} class(es)"
            raise ReattendError(f"{path} {what}: one name a line is wanted, each once, and two classes at least.")
        if self.known and not self.standin and len(names) != self.known.classes:
            raise ReattendError(f"{path} names {len(names)} classes; {self.name} has {self.known.classes}.")
        return names


def image_set(
    dataset: str | None, root: str | Path, standin: bool, form: Form | None, class_list: str | None
) -> ImageSet:
    """The set of that name.

    Raises:
        ReattendError: no name is given, or a stand-in is wanted of a set that has none.
    """
    if not dataset or Path(dataset).name != dataset:
        raise ReattendError(
            f"task.dataset={dataset}: name the set, which is a folder in data.root. Known are {', '.join(KNOWN)}."
        )
    if standin and dataset not in KNOWN:
        raise ReattendError(
            f"There is no stand-in for the images {dataset}.{nearest(dataset, KNOWN)} Stand-ins exist for "
            f"{', '.join(KNOWN)}: set task.dataset to one of them."
        )
    return ImageSet(dataset, Path(root).expanduser().absolute(), standin, form, class_list)


def _codes(listed: list[str], classes: tuple[str, ...], raw: EncodedFiles) -> dict[int, int]:
    """New codes of the listed classes, by their old ones."""
    places = {name: code for code, name in enumerate(classes)}
    absent = [name for name in listed if name not in places]
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        called = ", ".join(classes[:3]) + (", ..." if len(classes) > 3 else "")
        needs = "" if raw.form == ImageTree.form else " A list of folder names needs the form imagefolder."
        raise ReattendError(
            f"{raw.folder} ({raw.form}) has no class {', '.join(absent[:3])}{more} of the class list."
            f"{nearest(absent[0], classes)} Its {len(classes)} classes are called {called}.{needs}"
        )
    return {places[name]: code for code, name in enumerate(sorted(listed))}
