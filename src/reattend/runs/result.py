"""`result.json`: all that a table needs to know of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from reattend.errors import ReattendError
from reattend.runs.files import read_json, write_json
from reattend.runs.status import read_status

FILE = "result.json"
VERSION = 1
SELECTIONS = ("last", "best_on_validation", "best_on_test")
_REMEDY = "start the run again, which goes on from its last checkpoint"


@dataclass(frozen=True)
class Selected:
    """Metrics at the epoch that a selection rule picks, after `epoch` epochs and `step` updates."""

    epoch: int
    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        task, attention, backbone, seed, fingerprint, scale, protocol, data: the run's identity, by names.
        fidelity: every fidelity switch with its value, and the group's name.
        metrics: by selection rule: `last` always, `best_on_test` where the paper selected so, `best_on_validation`
            under the strict protocol, which never has `best_on_test`.
        parameters: number of trained parameters.
        flops: forward pass of one sample, 2 per multiply-add; None where it cannot be counted.
        training_flops: forward and backward pass of one sample.
        seconds: time in training and the evaluations during it, over all attempts.
        peak_memory: bytes, on the device; on a CPU of the process.
        device: what `seconds` and `peak_memory` were measured on.
        versions: of Python and packages.
        git_commit: of this code, with "+changes" if files differ from it; None outside a repository.
        data_checksums: by file or by split.
        config: the run's whole configuration, resolved.
        started_from: which of its weights the model took from others, and which not; None for random ones.
    """

    task: str
    attention: str
    backbone: str
    seed: int
    fingerprint: str
    scale: str
    protocol: str
    fidelity: Mapping[str, Any]
    data: str
    metrics: Mapping[str, Selected]
    parameters: int
    flops: int | None
    training_flops: int | None
    seconds: float
    peak_memory: int | None
    device: str
    versions: Mapping[str, str]
    git_commit: str | None
    data_checksums: Mapping[str, str]
    config: Mapping[str, Any]
    started_from: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        unknown = set(self.metrics) - set(SELECTIONS)
        if unknown or "last" not in self.metrics:
            raise ValueError(f"metrics must hold 'last' and only {SELECTIONS}, not {sorted(self.metrics)}")
        if self.protocol == "strict" and "best_on_test" in self.metrics:
            raise ValueError("the strict protocol never selects on test")

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the version of this form."""
        return {"version": VERSION} | asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Result:
        """Inverse of `to_json`.

        Raises:
            ValueError: it is no mapping, a key is missing or unknown, or the version is another.
        """
        if not isinstance(content, Mapping):
            raise ValueError("it holds no names with values")
        if content.get("version") != VERSION:
            raise ValueError(f"its version is {content.get('version')!r}, this code reads {VERSION}")
        entries = {key: value for key, value in content.items() if key != "version"}
        names = {field.name for field in fields(cls)}
        entries = {"started_from": None} | entries  # results of before have none
        if entries.keys() != names:
            raise ValueError(
                f"it lacks {sorted(names - entries.keys())}, does not know {sorted(entries.keys() - names)}"
            )
        entries["metrics"] = {rule: Selected(**selected) for rule, selected in entries["metrics"].items()}
        for rule, selected in entries["metrics"].items():
            wrong = [name for name, value in selected.metrics.items() if not isinstance(value, int | float)]
            if wrong:
                raise ValueError(f"{wrong[0]} of {rule} is no number: {selected.metrics[wrong[0]]!r}")
        return cls(**entries)


def unfinished(folder: Path) -> str | None:
    """What a run lacks of being finished: its status, a whole result, both models; None if nothing."""
    status = read_status(folder)
    if status is None or status.state != "done":
        return "it is not done"
    missing = [name for name in (FILE, "model_last.pt", "model_best.pt") if not (folder / name).exists()]
    try:
        read_result(folder)
    except ReattendError as error:
        if not missing:
            return str(error).removesuffix(_REMEDY).rstrip(" :;")
    return f"{folder / missing[0]} is missing" if missing else None


def write_result(folder: Path, result: Result) -> None:
    """Writes the whole file, or leaves the old one as it was.

    Raises:
        ReattendError: it cannot be written; with a full disk the message says how much is free.
    """
    write_json(folder / FILE, result.to_json())


def read_result(folder: Path) -> Result:
    """The result of a finished run.

    Raises:
        ReattendError: there is none, or it is no whole result of this version.
    """
    path = folder / FILE
    content = read_json(path, _REMEDY)
    try:
        return Result.from_json(content)
    except (ValueError, TypeError, AttributeError) as error:
        raise ReattendError(f"{path} is no result of a run: {error}; {_REMEDY}") from error
