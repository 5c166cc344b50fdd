"""`scripts/measure.py loading task=...`: whether the data of a task waits for the model, or the model for the data."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch.utils.data import DataLoader

from reattend.config.limits import Count
from reattend.data.sampled import Batch
from reattend.efficiency.arguments import Shape, read_own
from reattend.efficiency.page import Page
from reattend.efficiency.setting import prepare
from reattend.efficiency.update import configuration, update
from reattend.tasks.optimizers import make_optimizer
from reattend.train.execute import build_data, build_task

COLUMNS = ("", "ms", "samples/s", "share of an update")
USAGE = """\
python scripts/measure.py loading task=lra/text [attention=linear] [rounds=10] [file=...] [device=auto|cpu|cuda]
    [any override]
    set-up of the task's data up to the first batch; the loader's batches without a model; then updates of the model
    as configured, and how long each waits for its batch"""


@dataclass(frozen=True)
class Loading:
    """What is measured of a task's data."""

    rounds: Count = 10
    device: Literal["auto", "cpu", "cuda"] = "auto"
    file: str | None = None

    def problems(self) -> list[str]:
        """What is wrong with the values together."""
        return Shape(device=self.device).problems()


def measure_loading(arguments: Sequence[str]) -> Page:
    """Medians over batches of the loader alone, and of the loop that loads and updates in turn."""
    own, overrides = read_own(Loading, arguments, USAGE)
    device = Shape(device=own.device).torch_device()
    conditions = prepare(device, overrides)
    config = configuration(overrides)
    start = time.perf_counter()
    data = build_data(config)
    loader = data.train_dataloader()
    rows = len(next(iter(loader))["y"])
    set_up = time.perf_counter() - start
    task = build_task(config, data.shape).to(device).train()
    optimizer = make_optimizer(task.model, config.recipe.optimizer)
    alone = [seconds for seconds, _ in _timed(loader, own.rounds)]
    waits, updates = [], []
    for waited, batch in _timed(loader, own.rounds):
        waits.append(waited)
        mask = batch["padding_mask"]
        x, y, mask = batch["x"].to(device), batch["y"].to(device), None if mask is None else mask.to(device)
        start = time.perf_counter()
        update(task, optimizer, x, mask, y)
        updates.append(time.perf_counter() - start)
    page = Page(
        f"data of {config.task.name} ({config.data.name}), attention={config.attention.name}, {rows} samples a batch;"
        f" medians of {own.rounds} batches; {conditions}",
        COLUMNS,
        own.file,
    )
    measured = {
        "set-up to the first batch": [set_up],
        "the loader alone": alone,
        "an update": updates,
        "waiting for its batch": waits,
    }
    update_seconds = statistics.median(updates)
    for name, seconds in measured.items():
        median = statistics.median(seconds)
        share = (
            f"{100 * median / update_seconds:.2f} %" if name in ("the loader alone", "waiting for its batch") else ""
        )
        speed = f"{rows / median:,.0f}" if name in ("the loader alone", "an update") else ""
        page.add(name, [f"{1e3 * median:.2f}", speed, share], {"seconds": seconds})
    return page


def _timed(loader: DataLoader[Batch], count: int) -> Iterator[tuple[float, Batch]]:
    """`count` batches after one that starts what the loader starts, each with the seconds until it is there."""
    batches = _endless(loader)
    next(batches)
    for _ in range(count):
        start = time.perf_counter()
        batch = next(batches)
        yield time.perf_counter() - start, batch


def _endless(loader: DataLoader[Batch]) -> Iterator[Batch]:
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        yield from loader
