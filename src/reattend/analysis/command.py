"""The command `scripts/inspect_run.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from torch import Tensor, nn

from reattend.analysis.biases import biases_figure, learned_biases
from reattend.analysis.figures import check_figure_file, write_figure
from reattend.analysis.image_maps import maps_figure, maps_of_image, relative_maps
from reattend.backbones.timm_models import TIMM, model_of_timm
from reattend.config import from_dict, to_dict
from reattend.config.limits import Count, NonNegativeInt
from reattend.data.images.known import Statistics
from reattend.efficiency.arguments import read_own
from reattend.efficiency.update import configuration
from reattend.errors import ReattendError, nearest
from reattend.runs.files import read_json
from reattend.runs.load import DESCRIPTION, load, runs_near
from reattend.train.execute import build_data

USAGE = """\
python scripts/inspect_run.py run=FOLDER show=VIEW out=FILE.svg [which=last]
a picture of what a finished run has learned; FOLDER is outputs/runs/<task>/<attention>/<backbone>/s<seed>-<fingerprint>
which=best: at the epoch that was selected
show=biases: exp(w) - 1 of the Attention Free Transformer, by layer
show=relative_maps [images=256]: mean attention by the offset of key from query, over images of test
show=maps [image=0]: attention of the class token, or of the middle, in one image of test
maps also of a model of timm: run=timm:deit_tiny_patch16_224 task=imagenet/deit_tiny [any override of the data]"""


@dataclass(frozen=True)
class Options:
    """What is shown of which run.

    Attributes:
        run: the run's folder.
        show: a view, by its name.
        out: file of the picture; its ending says the format.
        which: weights after the last epoch, or at the one that the run's protocol selected.
        images: how many of test a mean is over.
        image: index of one.
    """

    run: str
    show: str
    out: Path
    which: Literal["last", "best"] = "last"
    images: Count = 256
    image: NonNegativeInt = 0


@dataclass(frozen=True)
class Inspected:
    """A model and what is shown to it.

    Attributes:
        model: in evaluation mode.
        config: of the run, or of one with the data that is shown.
        title: says of what a picture is.
        statistics: mean and deviation that the model's images are normalised with, where not the data's own.
    """

    model: nn.Module
    config: dict[str, Any]
    title: str
    statistics: Statistics | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the picture that is asked for; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or {"-h", "--help"} & set(given):
        print(USAGE, file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    try:
        options, others = read_own(Options, given, USAGE)
        of_timm = options.run.startswith(TIMM)
        if others and not of_timm:
            raise ReattendError(f"{' '.join(others)}: a finished run is shown as it is.\n{USAGE}")
        if options.show not in VIEWS:
            raise ReattendError(
                f"show={options.show}: no such view.{nearest(options.show, VIEWS)} All: {', '.join(VIEWS)}."
            )
        check_figure_file("out", options.out)
        inspected = _of_timm(options.run, others) if of_timm else inspect(Path(options.run), options.which)
        write_figure(options.out, VIEWS[options.show](inspected, options))
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
        raise ReattendError(f"{folder} is no folder of a finished run.{runs_near(folder)}")
    model = load(folder, which)
    config = read_json(folder / DESCRIPTION, "Train the run again with rerun=true.")["config"]
    told = {"last": f"after {config['recipe']['epochs']} epochs", "best": "at the selected epoch"}[which]
    of = f"{config['attention']['name']} on {config['task']['dataset']}, seed {config['seed']}, {told}"
    stamps = " ".join(f"{group}={config[group]['name']}" for group in ("scale", "data", "fidelity", "protocol"))
    return Inspected(model, config, f"{of}\n{stamps}")


def _of_timm(name: str, overrides: Sequence[str]) -> Inspected:
    """A model of timm, with the data of the task among `overrides`."""
    if not any(override.startswith("task=") for override in overrides):
        raise ReattendError(f"run={name}: name a task whose images are shown to it, such as task=imagenet/deit_tiny.")
    config = to_dict(configuration([*overrides, "attention=softmax"]))
    size = config["task"]["data_options"].get("image_size")
    if size is None:
        raise ReattendError(_no_images(config))
    model = model_of_timm(name.removeprefix(TIMM))
    patch = model.patch_embed.patch_size[0]
    if size % patch:
        raise ReattendError(
            f"{name} has patches of {patch} pixels, which do not divide images of {size}:"
            f" task.data_options.image_size={-(-size // patch) * patch}"
        )
    statistics = (tuple(model.pretrained_cfg["mean"]), tuple(model.pretrained_cfg["std"]))
    return Inspected(model, config, f"{name} on {config['task']['name']}", statistics)


def _biases(run: Inspected, options: Options) -> Figure:
    found = learned_biases(run.model)
    if not found:
        raise ReattendError(
            f"attention={run.config['attention']['name']} learns no position biases; aft_full, aft_conv and aft_local"
            " with a window do."
        )
    return biases_figure(found, f"Learned position biases: {run.title}")


def _relative_maps(run: Inspected, options: Options) -> Figure:
    found = relative_maps(
        run.model, (images[whole] for _, images, whole in _images(run, options.images) if whole.any())
    )
    return maps_figure(found, f"Mean attention by offset, {options.images} images at most: {run.title}")


def _maps(run: Inspected, options: Options) -> Figure:
    *_, (number, images, whole) = _images(run, options.image + 1)
    if number <= options.image:
        raise ReattendError(f"image={options.image}: test has {number} images, the last is image={number - 1}.")
    if not whole[-1]:
        raise ReattendError(f"image={options.image}: that file is no whole image, as is said above. Choose another.")
    image = images[-1:]
    return maps_figure(
        maps_of_image(run.model, image), f"Attention in image {options.image}: {run.title}", image[0], relative=False
    )


def _images(run: Inspected, count: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The first `count` images of test in batches, each with the number so far, and which of them could be decoded."""
    if not hasattr(run.model, "patch_embed"):
        raise ReattendError(_no_images(run.config))
    number = 0
    data = build_data(from_dict(run.config))
    for batch in data.test_dataloader():
        images = batch["x"][: count - number]
        if run.statistics is not None:
            images = _renormalised(images, data.test.statistics, run.statistics)  # type: ignore[attr-defined]
        number += len(images)
        yield number, images, batch["weight"][: len(images)] > 0
        if number == count:
            return


def _no_images(config: Mapping[str, Any]) -> str:
    return f"{config['task']['name']} has no images: this view is of vision transformers."


def _renormalised(images: Tensor, before: Statistics, after: Statistics) -> Tensor:
    """Images (B, C, S, S) with other means and deviations of the channels."""
    (mean, deviation), (new_mean, new_deviation) = (
        [images.new_tensor(values).view(-1, 1, 1) for values in statistics] for statistics in (before, after)
    )
    return (images * deviation + mean - new_mean) / new_deviation


VIEWS: dict[str, Callable[[Inspected, Options], Figure]] = {
    "biases": _biases,
    "relative_maps": _relative_maps,
    "maps": _maps,
}
