"""The command `scripts/inspect_run.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from torch import nn

from reattend.analysis.biases import biases_figure, learned_biases
from reattend.analysis.figures import check_figure_file, write_figure
from reattend.efficiency.arguments import read_own
from reattend.errors import ReattendError, nearest
from reattend.runs.files import read_json
from reattend.runs.load import DESCRIPTION, load

USAGE = """\
python scripts/inspect_run.py run=FOLDER show=VIEW out=FILE.svg [which=last]
a picture of what a finished run has learned; FOLDER is outputs/runs/<task>/<attention>/<backbone>/s<seed>-<fingerprint>
show=biases: exp(w) - 1 of the Attention Free Transformer, by layer; which=best: at the epoch that was selected"""


@dataclass(frozen=True)
class Options:
    """What is shown of which run.

    Attributes:
        run: the run's folder.
        show: a view, by its name.
        out: file of the picture; its ending says the format.
        which: weights after the last epoch, or at the one that the run's protocol selected.
    """

    run: Path
    show: str
    out: Path
    which: Literal["last", "best"] = "last"


@dataclass(frozen=True)
class Inspected:
    """A trained model with its run's configuration, and a title that says of what a picture is."""

    model: nn.Module
    config: dict[str, Any]
    title: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the picture that is asked for; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or {"-h", "--help"} & set(given):
        print(USAGE, file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    try:
        options, others = read_own(Options, given, USAGE)
        if others:
            raise ReattendError(f"{' '.join(others)}: a finished run is shown as it is.\n{USAGE}")
        if options.show not in VIEWS:
            raise ReattendError(
                f"show={options.show}: no such view.{nearest(options.show, VIEWS)} All: {', '.join(VIEWS)}."
            )
        check_figure_file("out", options.out)
        write_figure(options.out, VIEWS[options.show](inspect(options.run, options.which)))
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2
    print(options.out)
    return 0


def inspect(folder: Path, which: str) -> Inspected:
    """The trained model of a run.

    Raises:
        ReattendError: `folder` is no finished run, with the nearest one; or its files are damaged.
    """
    if not (folder / DESCRIPTION).is_file():
        raise ReattendError(f"{folder} is no folder of a finished run.{_finished_runs(folder)}")
    model = load(folder, which)
    config = read_json(folder / DESCRIPTION, "Train the run again with rerun=true.")["config"]
    told = {"last": f"after {config['recipe']['epochs']} epochs", "best": "at the selected epoch"}[which]
    of = f"{config['attention']['name']} on {config['task']['dataset']}, seed {config['seed']}, {told}"
    stamps = " ".join(f"{group}={config[group]['name']}" for group in ("scale", "data", "fidelity", "protocol"))
    return Inspected(model, config, f"{of}\n{stamps}")


def _biases(run: Inspected) -> Figure:
    found = learned_biases(run.model)
    if not found:
        raise ReattendError(
            f"attention={run.config['attention']['name']} learns no position biases; aft_full, aft_conv and aft_local"
            " with a window do."
        )
    return biases_figure(found, f"Learned position biases: {run.title}")


VIEWS: dict[str, Callable[[Inspected], Figure]] = {"biases": _biases}


def _finished_runs(folder: Path) -> str:
    """The finished run most like `folder`, and how many more there are beside it."""
    found = [str(path.parent) for path in sorted(_runs_near(folder))]
    if not found:
        return " There is none near it: python train.py trains one."
    return nearest(str(folder), found) or f" Finished ones are {', '.join(found[:3])}{', ...' * (len(found) > 3)}"


def _runs_near(folder: Path) -> list[Path]:
    """Descriptions of runs below the deepest part of the path that has any, inside of a folder `runs`."""
    inside = [place for place in (folder, *folder.parents) if "runs" in place.parts]
    for place in [*inside, Path("outputs", "runs")]:
        if found := list(place.rglob(DESCRIPTION)):
            return found
    return []
