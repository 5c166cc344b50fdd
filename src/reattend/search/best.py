"""`best.yaml`: what a search found, and from how many trials."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from reattend.config.binding import bind_dataclass
from reattend.config.limits import Count, NonNegativeInt
from reattend.config.loader import load_file
from reattend.config.problems import refuse
from reattend.runs.files import write_bytes

FILE = "best.yaml"


@dataclass(frozen=True)
class TrialRecord:
    """What a trial chose, and its validation metric; None if it failed."""

    overrides: list[str]
    value: float | None


@dataclass(frozen=True)
class Best:
    """The best configuration of a search.

    Attributes:
        search: name of the search.
        metric: what was compared, such as "val/accuracy".
        value: that of the best trial.
        trials: how many it is the best of, with the `failed` ones.
        seed: of all trials.
        space: what was searched: key -> range in Hydra's grammar.
        overrides: what `train.py` takes, without the seed; the chosen values stand last.
        history: every trial, in order.
    """

    search: str
    metric: str
    value: float
    trials: Count
    failed: NonNegativeInt
    seed: NonNegativeInt
    space: Mapping[str, str]
    overrides: list[str]
    history: list[TrialRecord]

    def __str__(self) -> str:
        failed = f"; {self.failed} failed" if self.failed else ""
        return f"best of {self.trials} trials by {self.metric} (search={self.search}, seed {self.seed}{failed})"


def write_best(path: Path, best: Best) -> None:
    """Writes the whole file, or leaves the old one.

    Raises:
        ReattendError: it cannot be written.
    """
    head = f"# B{str(best)[1:]}.\n# python train.py {shlex.quote(f'best={path}')}\n"
    write_bytes(path, (head + yaml.safe_dump(asdict(best), sort_keys=False, width=120)).encode())


def read_best(path: Path) -> Best:
    """What `write_best` wrote.

    Raises:
        ReattendError: the file is missing, or not one of a search.
    """
    problems: list[str] = []
    best = bind_dataclass(Best, load_file(path), str(path), problems)
    refuse(problems, "A search writes such a file: python scripts/list.py search")
    assert isinstance(best, Best)
    return best


def bests_of(overrides: Iterable[str]) -> list[Best]:
    """The searches whose outcome is among `overrides` of a run or a table's cell, as best=FILE.

    Raises:
        ReattendError: a file is missing, or not one of a search.
    """
    return [read_best(Path(o.removeprefix("best=")).expanduser()) for o in overrides if o.startswith("best=")]
