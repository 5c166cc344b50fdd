"""`scripts/measure.py task=...`: training steps of whole models beside the way that the followed code takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from reattend.attention import MultiHeadAttention
from reattend.config import RunConfig
from reattend.config.limits import Count
from reattend.data.facts import data_facts
from reattend.efficiency.arguments import Shape, read_own
from reattend.efficiency.memory import peak_bytes
from reattend.efficiency.page import Page
from reattend.efficiency.setting import prepare
from reattend.efficiency.timing import ratio, time_rounds
from reattend.efficiency.update import configuration, update
from reattend.tasks.optimizers import make_optimizer
from reattend.train.execute import build_task

FOLLOWED = "softmax as in the followed code"
AS_CONFIGURED = f"{FOLLOWED}, dropout 0.1, checkpointed"
COLUMNS = ("", "ms a step", "ratio (quartiles)", "MB", "ratio")
USAGE = """\
python scripts/measure.py task=lra/text [attention=softmax,linear,primal] [batch_size=4] [rounds=5] [file=...]
    [device=auto|cpu|cuda] [any override]
    an update of the whole model on full-length sequences, without attention dropout, as ratio to the same model with
    softmax attention as the code followed for Long Range Arena computes it (mlpen/Nystromformer: logits, their
    division, a mask that is subtracted, softmax and values, each written out in float32); beside it that one with
    dropout 0.1 on the weights and recomputed in the backward pass, as its trainers are configured"""


@dataclass(frozen=True)
class Training:
    """What is measured on the model of a task."""

    task: str
    attention: list[str] = field(default_factory=lambda: ["softmax", "linear", "primal"])
    batch_size: Count = 4
    rounds: Count = 5
    device: Literal["auto", "cpu", "cuda"] = "auto"
    file: str | None = None

    def problems(self) -> list[str]:
        """What is wrong with the values together."""
        return Shape(device=self.device).problems()


def measure_training(arguments: Sequence[str]) -> Page:
    """Updates of the models with each attention and with softmax as in the followed code, in alternating rounds."""
    own, overrides = read_own(Training, arguments, USAGE)
    device = Shape(device=own.device).torch_device()
    conditions = prepare(device, overrides)
    rows = {FOLLOWED: "softmax", **{name: name for name in own.attention}, AS_CONFIGURED: "softmax"}
    steps = {}
    for row, name in rows.items():
        dropout = 0.1 if row == AS_CONFIGURED else 0.0
        line = [f"task={own.task}", f"attention={name}", f"recipe.attention_dropout={dropout}", *overrides]
        config = configuration(line)
        kernel = {FOLLOWED: _followed, AS_CONFIGURED: _recomputed(_followed)}.get(row)
        steps[row] = _step(config, own.batch_size, device, kernel)
    length = config.task.data_options.get("max_length", "full")
    page = Page(
        f"one update of {own.task}, {length} tokens, batch {own.batch_size}; medians of {own.rounds} rounds;"
        f" {conditions}",
        COLUMNS,
        own.file,
    )
    seconds = time_rounds(steps, own.rounds)
    held = {row: peak_bytes(step, device) for row, step in steps.items()}
    for row in steps:
        cells = [
            f"{1e3 * statistics.median(seconds[row]):.0f}",
            str(ratio(seconds[row], seconds[FOLLOWED])),
            f"{held[row] / 1e6:.0f}",
            f"{held[row] / held[FOLLOWED]:.2f}",
        ]
        page.add(row, cells, {"seconds": seconds[row], "bytes": held[row]})
    return page


def _step(
    config: RunConfig, batch_size: int, device: torch.device, kernel: Callable[..., Tensor] | None
) -> Callable[[], None]:
    """An update on the same random batch each time; `kernel` takes the place of each layer's own."""
    shape = data_facts(config).shape
    task = build_task(config, shape).to(device).train()
    if kernel is not None:
        for module in task.model.modules():
            if isinstance(module, MultiHeadAttention):
                module.kernel.forward = kernel  # type: ignore[method-assign]
    optimizer = make_optimizer(task.model, config.recipe.optimizer)
    x, y = _batch(task.model, batch_size, shape, device)

    def step() -> None:
        update(task, optimizer, x, None, y)

    return step


def _batch(model: nn.Module, batch_size: int, shape: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    example: Tensor = model.example()["x"]  # type: ignore[operator]
    size = (batch_size, *example.shape[1:])
    ids = not example.is_floating_point()
    x = (
        torch.randint(1, shape["vocabulary"], size, generator=generator)
        if ids
        else torch.randn(size, generator=generator)
    )
    y = torch.randint(shape["num_outputs"], (batch_size,), generator=generator)
    return x.to(device), y.to(device)


def _followed(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, *, dropout: float, **_: Any) -> Tensor:
    """softmax(Q K^T / sqrt(d) - 10^6 (1 - mask)) V, an operation after the other on all pairs of tokens."""
    mask = q.new_ones(len(q), k.shape[-2]) if key_mask is None else key_mask.to(q.dtype)
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    logits = logits - 1e6 * (1 - mask[:, None, None, :])
    return F.dropout(logits.softmax(-1), dropout) @ v


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return result

    return call
