"""The trained model of a run, as a plain module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reattend.errors import ReattendError, nearest
from reattend.runs.checkpoints import read_torch, write_torch
from reattend.runs.files import read_json, write_json
from reattend.runs.result import FILE

if TYPE_CHECKING:  # torch takes seconds to import, and the command line must answer sooner
    from torch import Tensor, nn

    from reattend.config.schema import RunConfig

DESCRIPTION = "model.json"
_REMEDY = "Train the run again with rerun=true."
_MOST_NAMED = 3
_EXPORTED = ", only what scripts/runs.py export keeps of a run: train it again."


def save_model(folder: Path, which: str, description: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> None:
    """Writes `model.json` and `model_<which>.pt`, each atomically.

    Args:
        folder: the run's.
        which: "last" or "best".
        description: {"config": the run's configuration as nested dictionaries, "shape": the data's shape as
            `reattend.backbones.build_backbone` takes it}.
        state_dict: the backbone's.

    Raises:
        ReattendError: a file cannot be written.
    """
    write_json(folder / DESCRIPTION, {"config": description["config"], "shape": description["shape"]})
    write_torch(_weights(folder, which), dict(state_dict))


def load(folder: str | Path, which: str = "last") -> nn.Module:
    """The backbone that a run trained, with its weights, on the CPU and in evaluation mode.

    Args:
        folder: the run's, outputs/runs/<task>/<attention>/<backbone>/s<seed>-<fingerprint>.
        which: "last", or "best" for the epoch that the run's protocol selected.

    Raises:
        ReattendError: the folder holds no such model, or its files are damaged or do not fit this code.
    """
    folder = Path(folder)
    path = _weights(folder, which)
    if not path.exists():
        saved = sorted(file.stem.removeprefix("model_") for file in folder.glob("model_*.pt"))
        raise ReattendError(
            f"{folder} holds no model '{which}', only: {', '.join(saved)}.{nearest(which, saved)}"
            if saved
            else f"{folder} holds no trained model{_EXPORTED if (folder / FILE).is_file() else '.' + runs_near(folder)}"
        )
    model = _build(folder)
    try:
        model.load_state_dict(read_torch(path, _REMEDY))
    except (RuntimeError, TypeError) as error:
        message = f"{path} does not fit the model that {DESCRIPTION} describes: {error}. {_REMEDY}"
        raise ReattendError(message) from error
    return model.eval()


def load_config(folder: str | Path) -> RunConfig:
    """The configuration of a run that has trained a model.

    Raises:
        ReattendError: as `load`.
    """
    from reattend.config import from_dict

    return from_dict(_description(Path(folder))["config"])


def _build(folder: Path) -> nn.Module:
    from reattend.backbones import build_backbone

    return build_backbone(load_config(folder), _description(folder)["shape"])


def _description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    description = read_json(path, _REMEDY)
    if not isinstance(description, dict) or description.keys() != {"config", "shape"}:
        raise ReattendError(f"{path} describes no model: expected the keys config and shape. {_REMEDY}")
    return description


def _weights(folder: Path, which: str) -> Path:
    return folder / f"model_{which}.pt"


def runs_near(folder: Path) -> str:
    """What a person may have meant by `folder`: the run most like it that has a model, or some of those near it."""
    found = [str(path.parent) for path in sorted(_models_near(folder))]
    if not found:
        return " There is none near it: python train.py trains one."
    more = ", ..." * (len(found) > _MOST_NAMED)
    return nearest(str(folder), found) or f" Finished ones are {', '.join(found[:_MOST_NAMED])}{more}"


def _models_near(folder: Path) -> list[Path]:
    """Descriptions of models below the deepest part of the path that has any, inside of a folder `runs`."""
    inside = [place for place in (folder, *folder.parents) if "runs" in place.parts]
    for place in [*inside, Path("outputs", "runs")]:
        if found := list(place.rglob(DESCRIPTION)):
            return found
    return []
