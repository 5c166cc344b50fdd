"""Finding the two files of a set: in a folder or a zip archive of the person's, or inside the installed sktime."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from reattend.data.known_sets import KNOWN_SETS
from reattend.data.zipped import ZipMember, find_members
from reattend.errors import ReattendError, nearest

_SITE = "https://www.timeseriesclassification.com"
_UNPACKS_TO = {"uea": "Multivariate_ts", "ucr": "Univariate_ts", "tser": "Monash_UEA_UCR_Regression_Archive"}
_ZIPS = {
    "uea": "Multivariate2018_ts.zip",
    "ucr": "Univariate2018_ts.zip",
    "tser": "Monash_UEA_UCR_Regression_Archive.zip",
}
_SOURCES = {
    "uea": f"the UEA multivariate archive, {_SITE}/aeon-toolkit/Archives/Multivariate2018_ts.zip",
    "ucr": f"the UCR univariate archive, {_SITE}/aeon-toolkit/Archives/Univariate2018_ts.zip",
    "tser": "the Monash, UEA and UCR time-series extrinsic regression archive, https://zenodo.org/records/3902651",
}


@dataclass(frozen=True)
class SeriesFiles:
    """The training and the test file of one set, and where they come from ("folder", "zip", "sktime", "stand-in")."""

    dataset: str
    train: Path | ZipMember
    test: Path | ZipMember
    origin: str

    def checksum(self) -> str:
        """SHA-256 over both files: of their two digests, train first."""
        return hashlib.sha256(b"".join(_digest(path) for path in (self.train, self.test))).hexdigest()


def locate(dataset: str | None, archive: str, root: str | Path) -> SeriesFiles:
    """Finds `<dataset>_TRAIN.ts` and `<dataset>_TEST.ts`.

    Looked for in the folders `<root>/<dataset>`, `<root>/<archive>/<dataset>` and `<root>/<the folder that the
    archive's zip unpacks to>/<dataset>`; then inside the zips `<dataset>.zip` and that of the whole archive
    (`Multivariate2018_ts.zip` for "uea"), in `<root>` and `<root>/<archive>`; then among the sets that sktime ships,
    and those that its loader has fetched. sktime is not imported.

    Raises:
        ReattendError: no name is given, the archive is unknown, no file is found, one of the two is missing, or a zip
            is damaged.
    """
    if archive not in _SOURCES:
        raise ReattendError(
            f"Unknown archive '{archive}', choose from {', '.join(_SOURCES)}.{nearest(archive, _SOURCES)}"
        )
    root = Path(root).expanduser().absolute()
    if not dataset:
        raise ReattendError(
            "No data set is named. Add task.dataset=<Name>: the folder of <Name>_TRAIN.ts and <Name>_TEST.ts in "
            f"data.root={root}."
        )
    if Path(dataset).name != dataset or dataset == "..":
        raise ReattendError(
            f"'{dataset}' is no data set's name: give the name alone, and its folder's parent as data.root."
        )
    names = (f"{dataset}_TRAIN.ts", f"{dataset}_TEST.ts")
    for place, origin in _places(dataset, archive, root):
        found: list[Path] | list[ZipMember]
        if origin == "zip":
            found = find_members(place, names) if place.is_file() else []
        else:
            found = [path for path in (place / name for name in names) if path.is_file()]
        if len(found) == 2:
            return SeriesFiles(dataset, found[0], found[1], origin)
        if len(found) == 1:
            (missing,) = {*names} - {found[0].name}
            raise ReattendError(
                f"{place / missing} is missing, though {place} holds the other file of {dataset}. {_source(archive)}"
            )
    raise ReattendError(_not_found(dataset, archive, root))


def _places(dataset: str, archive: str, root: Path) -> list[tuple[Path, str]]:
    """Folders and zips to look in, in order, each with the origin that it gives."""
    parents = [root, root / archive]
    folders = [(parent / dataset, "folder") for parent in [*parents, root / _UNPACKS_TO[archive]]]
    zips = [(parent / name, "zip") for parent in parents for name in (f"{dataset}.zip", _ZIPS[archive])]
    # sktime keeps what it ships in data and what its loader has fetched in local_data.
    own = [(shipped / dataset, "sktime") for shipped in _sktime_folders()]
    return [*folders, *zips, *own]


def _sktime_folders() -> list[Path]:
    """Folders of sktime's data sets, without importing sktime (which takes seconds)."""
    spec = importlib.util.find_spec("sktime")
    if spec is None or not spec.submodule_search_locations:
        return []
    datasets = Path(spec.submodule_search_locations[0]) / "datasets"
    return [datasets / "data", datasets / "local_data"]


def _not_found(dataset: str, archive: str, root: Path) -> str:
    places = "\n".join(f"  {place}" for place, origin in _places(dataset, archive, root) if origin != "sktime")
    known = KNOWN_SETS.get(dataset)
    if known:
        size = f", {known.cases[0]} + {known.cases[1]} series, roughly {known.megabytes:.1f} MB as text"
        meanwhile = "Meanwhile the same command runs on a small generated stand-in: add data=standin."
    else:
        size = ", of a size that is not known here"
        meanwhile = (
            "It has no stand-in; the same code runs on that of another set: task=uea/japanese_vowels data=standin."
        )
    hint = "" if known else nearest(dataset, {*KNOWN_SETS, *_present(archive, root)})
    return (
        f"The data set {dataset} is not on this machine.{hint}\n"
        f"Wanted: {dataset}_TRAIN.ts and {dataset}_TEST.ts{size}, in one of these folders or zips\n{places}\n"
        f"{_source(archive)} Put it into {root}, as it is or unpacked, or say where it is with data.root=<folder>.\n"
        f"{meanwhile}"
    )


def _present(archive: str, root: Path) -> set[str]:
    parents = [root, root / archive, root / _UNPACKS_TO[archive]]
    return {path.name.removesuffix("_TRAIN.ts") for parent in parents for path in parent.glob("*/*_TRAIN.ts")}


def _source(archive: str) -> str:
    return f"Source: {_SOURCES[archive]}."


def _digest(path: Path | ZipMember) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
    except OSError as error:
        raise ReattendError(f"{path} cannot be read: {error.strerror or error}.") from error
