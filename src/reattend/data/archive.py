"""Finding the two files of a set: in a folder of the person's, or inside the installed sktime."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from reattend.data.known_sets import KNOWN_SETS
from reattend.errors import ReattendError, nearest

_SITE = "https://www.timeseriesclassification.com"
_UNPACKS_TO = {"uea": "Multivariate_ts", "ucr": "Univariate_ts", "tser": "TSER"}
_SOURCES = {
    "uea": f"the UEA multivariate archive, {_SITE}/aeon-toolkit/Archives/Multivariate2018_ts.zip",
    "ucr": f"the UCR univariate archive, {_SITE}/aeon-toolkit/Archives/Univariate2018_ts.zip",
    "tser": "the Monash, UEA and UCR time-series extrinsic regression archive (TSER)",
}


@dataclass(frozen=True)
class SeriesFiles:
    """The training and the test file of one set, and where they come from ("folder", "sktime" or "stand-in")."""

    dataset: str
    train: Path
    test: Path
    origin: str

    def checksum(self) -> str:
        """SHA-256 over both files: of their two digests, train first."""
        return hashlib.sha256(b"".join(_digest(path) for path in (self.train, self.test))).hexdigest()


def locate(dataset: str | None, archive: str, root: str | Path) -> SeriesFiles:
    """Finds `<dataset>_TRAIN.ts` and `<dataset>_TEST.ts`.

    Looked for in `<root>/<dataset>`, `<root>/<archive>/<dataset>`, the folder that the archive's zip unpacks to
    (`<root>/Multivariate_ts/<dataset>` for "uea", `<root>/Univariate_ts/<dataset>` for "ucr"), then among the sets that
    sktime ships; sktime is not imported.

    Raises:
        ReattendError: no name is given, the archive is unknown, no file is found, or one of the two is missing.
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
    for folder, origin in _folders(dataset, archive, root):
        found = SeriesFiles(dataset, folder / f"{dataset}_TRAIN.ts", folder / f"{dataset}_TEST.ts", origin)
        missing = [path for path in (found.train, found.test) if not path.is_file()]
        if not missing:
            return found
        if len(missing) == 1:
            raise ReattendError(
                f"{missing[0]} is missing, though {folder} holds the other file of {dataset}. {_source(archive)}"
            )
    raise ReattendError(_not_found(dataset, archive, root))


def _folders(dataset: str, archive: str, root: Path) -> list[tuple[Path, str]]:
    parents = [root, root / archive, root / _UNPACKS_TO[archive]]
    folders = [(parent / dataset, "folder") for parent in parents]
    shipped = _shipped()
    return [*folders, (shipped / dataset, "sktime")] if shipped else folders


def _shipped() -> Path | None:
    """Folder of sktime's own data sets, without importing sktime (which takes seconds)."""
    spec = importlib.util.find_spec("sktime")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "datasets" / "data"


def _not_found(dataset: str, archive: str, root: Path) -> str:
    places = "\n".join(f"  {folder}" for folder, origin in _folders(dataset, archive, root) if origin == "folder")
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
        f"Wanted: {dataset}_TRAIN.ts and {dataset}_TEST.ts{size}, in one of\n{places}\n"
        f"{_source(archive)} Unpack it into {root}, or say where it is with data.root=<folder>.\n{meanwhile}"
    )


def _present(archive: str, root: Path) -> set[str]:
    parents = [root, root / archive, root / _UNPACKS_TO[archive]]
    return {path.name.removesuffix("_TRAIN.ts") for parent in parents for path in parent.glob("*/*_TRAIN.ts")}


def _source(archive: str) -> str:
    return f"Source: {_SOURCES[archive]}."


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise ReattendError(f"{path} cannot be read: {error.strerror or error}.") from error
