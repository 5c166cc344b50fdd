"""Results that travel: finished runs without their weights, with where they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reattend.errors import ReattendError
from reattend.runs.catalogue import RunEntry
from reattend.runs.files import read_json, write_bytes, write_json
from reattend.runs.metrics import FILE as METRICS
from reattend.runs.result import FILE as RESULT
from reattend.runs.result import Result, read_result

PROVENANCE = "provenance.json"
_REMEDY = "export the run again"
# Places on somebody's machine: they are no part of a run's identity.
_PLACES = {"outputs": "outputs", "data.root": "data"}


@dataclass
class Exchanged:
    """What became of the runs: names of new, of equal and of refused ones, those with the reason."""

    new: list[str] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def export_runs(entries: Iterable[RunEntry], to: Path) -> Exchanged:
    """Copies `result.json` and `metrics.csv` of finished runs below `to`, in folders of the same names.

    Folders of the machine that the configuration names are replaced by their defaults. `provenance.json` has the time,
    the commit and the checksum of each file. A run that is there already with the same metrics is left as it is.
    """
    made = Exchanged()
    for entry in entries:
        if entry.result is not None:
            _put(
                replace(entry.result, config=_without_places(entry.result.config)), entry.folder, to / entry.name, made
            )
    return made


def import_runs(source: Path, to: Path) -> Exchanged:
    """Takes exported runs below `source` into `to`, which is `<outputs>/runs` or a folder of exported runs.

    Refused are runs without a whole result, with a checksum that is wrong, without a name that agrees with their
    content, and those whose metrics differ from those of the same run in `to`.

    Raises:
        ReattendError: there are none.
    """
    made, found = Exchanged(), sorted(source.glob(f"**/{PROVENANCE}"))
    if not found:
        raise ReattendError(
            f"{source} holds no exported runs ({PROVENANCE} beside {RESULT}). To make some: "
            "python scripts/runs.py export to=FOLDER"
        )
    for path in found:
        folder = path.parent
        try:
            result = _checked(folder)
        except ReattendError as error:
            made.refused.append(str(error))
            continue
        name = Path(result.task, *folder.parts[-3:])
        _put(result, folder, to / name, made, provenance=read_json(path, _REMEDY))
    return made


def _put(result: Result, source: Path, target: Path, made: Exchanged, provenance: dict[str, Any] | None = None) -> None:
    if (target / RESULT).exists():
        same = read_result(target).metrics == result.metrics
        (made.equal if same else made.refused).append(
            str(target) if same else f"{target}: the run is there with other metrics; compare: scripts/runs.py diff"
        )
        return
    metrics = source / METRICS
    if metrics.exists():
        write_bytes(target / METRICS, metrics.read_bytes())
    write_json(target / RESULT, result.to_json())
    origin = provenance or {"exported": datetime.now(UTC).isoformat(timespec="seconds"), "commit": result.git_commit}
    files = {path.name: _sha256(path) for path in sorted(target.iterdir()) if path.name in (RESULT, METRICS)}
    write_json(target / PROVENANCE, {**origin, "sha256": files})
    made.new.append(str(target))


def _checked(folder: Path) -> Result:
    provenance = read_json(folder / PROVENANCE, _REMEDY)
    wrong: Sequence[str] = [
        name
        for name, expected in provenance.get("sha256", {RESULT: ""}).items()
        if not (folder / name).exists() or _sha256(folder / name) != expected
    ]
    if wrong:
        raise ReattendError(f"{folder}: {', '.join(wrong)} is not the file that was exported; {_REMEDY}")
    result = read_result(folder)
    if folder.name != f"s{result.seed}-{result.fingerprint}":
        raise ReattendError(f"{folder}: its result is of s{result.seed}-{result.fingerprint}; {_REMEDY}")
    return result


def _without_places(config: Any) -> dict[str, Any]:
    plain = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for path, default in _PLACES.items():
        group, _, key = path.partition(".")
        if key:
            plain[group][key] = default
        else:
            plain[group] = default
    return plain


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
