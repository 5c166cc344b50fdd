"""Why two runs have different numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reattend.errors import ReattendError
from reattend.runs.identity import counts
from reattend.runs.metrics import FILE as METRICS
from reattend.runs.metrics import read_metrics
from reattend.runs.result import Result, read_result


@dataclass(frozen=True)
class Difference:
    """One thing in which two runs differ; `matters` says whether it changes numbers by itself."""

    what: str
    left: str
    right: str
    matters: bool


@dataclass(frozen=True)
class RunDiff:
    """Two finished runs beside each other.

    Attributes:
        differences: in configuration, data, code, versions and device; those that matter first.
        metrics: under each selection rule, name -> (left, right).
        first_step: the first update after which a metric of both differs; None if none does, or it is not known.
        conclusion: one sentence.
    """

    differences: tuple[Difference, ...]
    metrics: Mapping[str, tuple[float, float]]
    first_step: int | None
    conclusion: str


def diff_runs(left: Path, right: Path) -> RunDiff:
    """Compares the runs in two folders.

    Raises:
        ReattendError: one of them has no whole result.
    """
    first, second = read_result(left), read_result(right)
    differences = sorted(_differences(first, second), key=lambda difference: not difference.matters)
    metrics = {
        f"{rule}, {name}": (selected.metrics[name], second.metrics[rule].metrics[name])
        for rule, selected in first.metrics.items()
        if rule in second.metrics
        for name in selected.metrics
        if name in second.metrics[rule].metrics
    }
    step = _first_step(left, right)
    return RunDiff(tuple(differences), metrics, step, _conclusion(differences, metrics, step))


def _differences(left: Result, right: Result) -> Iterator[Difference]:
    first, second = _flat(left.config), _flat(right.config)
    for key in sorted(first.keys() | second.keys()):
        ours, theirs = first.get(key, "absent"), second.get(key, "absent")
        if ours != theirs:
            yield Difference(key, str(ours), str(theirs), counts(key))
    for name in sorted(left.data_checksums.keys() | right.data_checksums.keys()):
        ours, theirs = left.data_checksums.get(name, "absent"), right.data_checksums.get(name, "absent")
        if ours != theirs:
            yield Difference(f"data, {name}", ours[:12], theirs[:12], True)
    if left.git_commit != right.git_commit or str(left.git_commit).endswith("+changes"):
        yield Difference("code", str(left.git_commit), str(right.git_commit), True)
    for name in sorted(left.versions.keys() | right.versions.keys()):
        ours, theirs = left.versions.get(name, "absent"), right.versions.get(name, "absent")
        if ours != theirs:
            yield Difference(f"version of {name}", ours, theirs, name in ("torch", "numpy", "timm"))
    if left.device != right.device:
        yield Difference("device", left.device, right.device, True)


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {key: leaf for name, entry in value.items() for key, leaf in _flat(entry, _join(path, name)).items()}
    return {path: value}


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _first_step(left: Path, right: Path) -> int | None:
    try:
        first, second = (
            {(row.metric, row.step): row.value for row in read_metrics(folder / METRICS)} for folder in (left, right)
        )
    except ReattendError:
        return None  # an exported run may have none
    both = first.keys() & second.keys()
    return min((step for metric, step in both if _differs(first[metric, step], second[metric, step])), default=None)


def _differs(left: float, right: float) -> bool:
    return left != right and not (left != left and right != right)


def _conclusion(differences: list[Difference], metrics: Mapping[str, tuple[float, float]], step: int | None) -> str:
    mattering = [difference.what for difference in differences if difference.matters]
    since = "" if step is None else f" They part at update {step}."
    if not any(_differs(*both) for both in metrics.values()):
        return f"The numbers are the same{', in spite of ' + ', '.join(mattering) if mattering else ''}."
    if mattering:
        return f"The numbers differ most likely by {', '.join(mattering[:5])}.{since}"
    return f"The numbers differ though nothing that should matter does: the run is not deterministic there.{since}"
