"""`scripts/measure.py images`: vision transformers with each attention beside timm's own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reattend.config import RunConfig
from reattend.config.limits import Count
from reattend.data.facts import data_facts
from reattend.efficiency.arguments import Shape, read_own
from reattend.efficiency.memory import peak_bytes
from reattend.efficiency.page import Page
from reattend.efficiency.setting import prepare
from reattend.efficiency.timing import ratio, time_rounds
from reattend.efficiency.update import configuration
from reattend.tasks.optimizers import make_optimizer
from reattend.train.execute import build_model

TIMM = "softmax, timm's own model"
COLUMNS = ("", "ms an update", "ratio (quartiles)", "MB", "images/s in testing", "ratio (quartiles)", "MB")
USAGE = """\
python scripts/measure.py images [task=imagenet/deit_tiny] [attention=softmax,bn,sh,bn_sh,aft_conv] [batch_size=8]
    [rounds=5] [file=...] [device=auto|cpu|cuda] [any override]
    an update and a forward pass without gradients of the whole model, as ratios to timm's model of the same shape"""


@dataclass(frozen=True)
class Images:
    """What is measured of vision transformers."""

    task: str = "imagenet/deit_tiny"
    attention: list[str] = field(default_factory=lambda: ["softmax", "bn", "sh", "bn_sh", "aft_conv"])
    batch_size: Count = 8
    rounds: Count = 5
    device: Literal["auto", "cpu", "cuda"] = "auto"
    file: str | None = None

    def problems(self) -> list[str]:
        """What is wrong with the values together."""
        return Shape(device=self.device).problems()


def measure_images(arguments: Sequence[str]) -> Page:
    """Updates and forward passes on the same random images, in alternating rounds."""
    own, overrides = read_own(Images, arguments, USAGE)
    device = Shape(device=own.device).torch_device()
    conditions = prepare(device, overrides)
    configs = {name: configuration([f"task={own.task}", f"attention={name}", *overrides]) for name in own.attention}
    some = next(iter(configs.values()))
    shape = dict(data_facts(some).shape)
    torch.manual_seed(0)
    images = torch.randn(own.batch_size, shape["channels"], shape["image_size"], shape["image_size"], device=device)
    classes = torch.randint(shape["num_outputs"], (own.batch_size,), device=device)
    models: dict[str, nn.Module] = {TIMM: _timms(some, shape)}
    models |= {name: _Logits(build_model(config, shape)[0]) for name, config in configs.items()}
    updates, passes = {}, {}
    for row, model in models.items():
        model.to(device)
        updates[row] = partial(_update, model, make_optimizer(model, some.recipe.optimizer), images, classes)
        passes[row] = partial(_test, model, images)
    seconds = {"update": time_rounds(updates, own.rounds), "test": time_rounds(passes, own.rounds)}
    held = {"update": _held(updates, device), "test": _held(passes, device)}
    page = Page(
        f"{own.task}, {shape['image_size']} pixels, batch {own.batch_size}; medians of {own.rounds} rounds;"
        f" {conditions}",
        COLUMNS,
        own.file,
    )
    for row in models:
        cells = [f"{1e3 * statistics.median(seconds['update'][row]):.0f}"]
        cells += [str(ratio(seconds["update"][row], seconds["update"][TIMM])), f"{held['update'][row] / 1e6:.0f}"]
        cells += [f"{own.batch_size / statistics.median(seconds['test'][row]):.1f}"]
        cells += [str(ratio(seconds["test"][row], seconds["test"][TIMM])), f"{held['test'][row] / 1e6:.0f}"]
        raw = {what: {"seconds": seconds[what][row], "bytes": held[what][row]} for what in seconds}
        page.add(row, cells, raw)
    return page


class _Logits(nn.Module):
    """A backbone without the losses of its mixers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits, losses = self.model(x)
        # Losses count among what an update costs.
        return logits + sum(value.sum() for name, value in losses.items() if "/" not in name)  # type: ignore[no-any-return]


def _timms(config: RunConfig, shape: dict[str, int]) -> nn.Module:
    # Imported here: timm takes seconds, and the other measures do without.
    from timm.models.vision_transformer import VisionTransformer

    options: dict[str, Any] = dict(config.backbone.options)
    model: nn.Module = VisionTransformer(
        img_size=shape["image_size"],
        in_chans=shape["channels"],
        num_classes=shape["num_outputs"],
        patch_size=options["patch_size"],
        embed_dim=options["dim"],
        depth=options["depth"],
        num_heads=options["num_heads"],
        drop_path_rate=options["drop_path"],
    )
    return model


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, classes: Tensor) -> None:
    model.train()
    F.cross_entropy(model(images).float(), classes).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if images.is_cuda:
        torch.cuda.synchronize(images.device)


@torch.no_grad()
def _test(model: nn.Module, images: Tensor) -> None:
    model.eval()
    model(images)
    if images.is_cuda:
        torch.cuda.synchronize(images.device)


def _held(steps: Mapping[str, Callable[[], None]], device: torch.device) -> dict[str, int]:
    return {row: peak_bytes(step, device) for row, step in steps.items()}
