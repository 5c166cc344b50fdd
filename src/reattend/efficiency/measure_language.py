"""`scripts/measure.py language` and `decoding`: autoregressive models in training and token by token, by length."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

from reattend.backbones import ARDecoder
from reattend.backbones.ar_decoder import DecoderState
from reattend.config import RunConfig
from reattend.config.limits import Count
from reattend.data.facts import data_facts
from reattend.efficiency.arguments import Shape, read_own
from reattend.efficiency.memory import peak_bytes
from reattend.efficiency.page import Page
from reattend.efficiency.setting import prepare
from reattend.efficiency.timing import ratio, time_rounds
from reattend.efficiency.update import configuration, update
from reattend.errors import ReattendError
from reattend.tasks.optimizers import make_optimizer
from reattend.train.execute import build_model, build_task

BASELINE = "softmax"  # fused: without dropout on the attention's weights
TRAINING_COLUMNS = ("", "tokens/s", "times softmax's (quartiles)", "MB", "ratio")
DECODING_COLUMNS = ("", "tokens/s", "time a token, as ratio to the shortest (quartiles)", "state, KB a sequence")
SMALL = {"dim": 128, "depth": 4, "num_heads": 4}
_STEPS = 16  # tokens of one timed call
USAGE = """\
python scripts/measure.py language [attention=softmax,linear,aft_simple,aft_local] [lengths=4096,8192,16384]
    [batch_size=1] [rounds=3] [file=...] [device=auto|cpu|cuda] [any override]
    an update of a decoder (4 layers, width 128, 4 heads) on bytes, as tokens/s beside fused softmax, with its memory
python scripts/measure.py decoding [attention=softmax,linear,aft_simple,aft_local] [lengths=1000,4000,16000]
    [batch_size=1] [rounds=10] [file=...] [device=auto|cpu|cuda] [any override]
    the same decoder token by token: time of a token behind so many others, and the size of the state"""


@dataclass(frozen=True)
class Language:
    """What is measured of decoders in training."""

    attention: list[str] = field(default_factory=lambda: ["softmax", "linear", "aft_simple", "aft_local"])
    lengths: list[Count] = field(default_factory=lambda: [4096, 8192, 16384])
    batch_size: Count = 1
    rounds: Count = 3
    device: Literal["auto", "cpu", "cuda"] = "auto"
    file: str | None = None

    def problems(self) -> list[str]:
        """What is wrong with the values together."""
        return Shape(device=self.device).problems()


@dataclass(frozen=True)
class Decoding(Language):
    """What is measured of decoders that continue a sequence."""

    lengths: list[Count] = field(default_factory=lambda: [1000, 4000, 16000])
    rounds: Count = 10


def measure_language(arguments: Sequence[str]) -> Page:
    """Updates with each attention and with softmax, in alternating rounds at each length."""
    own, overrides = read_own(Language, arguments, USAGE)
    device = Shape(device=own.device).torch_device()
    conditions = prepare(device, overrides)
    rows = list(dict.fromkeys([BASELINE, *own.attention]))
    configs = {(row, n): _configuration(row, n, overrides) for row in rows for n in own.lengths}
    page = Page(f"one update, batch {own.batch_size}; {_told(own, configs)}; {conditions}", TRAINING_COLUMNS, own.file)
    for length in own.lengths:
        steps = {row: _update(configs[row, length], own.batch_size, length, device) for row in rows}
        seconds = time_rounds(steps, own.rounds)
        held = {row: peak_bytes(step, device) for row, step in steps.items()}
        for row in own.attention:
            cells = [
                f"{own.batch_size * length / statistics.median(seconds[row]):,.0f}",
                str(ratio(seconds[BASELINE], seconds[row])),
                f"{held[row] / 1e6:.0f}",
                f"{held[row] / held[BASELINE]:.2f}",
            ]
            page.add(f"{row}, {length:,} tokens", cells, {"seconds": seconds[row], "bytes": held[row]})
    return page


def measure_decoding(arguments: Sequence[str]) -> Page:
    """Tokens behind a short and a long past, from kept states, in alternating rounds."""
    own, overrides = read_own(Decoding, arguments, USAGE)
    device = Shape(device=own.device).torch_device()
    conditions = prepare(device, overrides)
    longest = max(own.lengths) + _STEPS
    configs = {row: _configuration(row, longest, overrides) for row in own.attention}
    page = Page(f"batch {own.batch_size}; {_told(own, configs)}; {conditions}", DECODING_COLUMNS, own.file)
    for row, config in configs.items():
        model = build_model(config, data_facts(config).shape)[0].to(device).eval()
        if not isinstance(model, ARDecoder):
            raise ReattendError(f"backbone={config.backbone.name} decodes nothing: backbone=ar_decoder does.")
        states = _states(model, own.lengths, own.batch_size, device)
        calls = {str(n): partial(_continue, model, states[n], n, own.batch_size, device) for n in own.lengths}
        seconds = time_rounds(calls, own.rounds)
        for length in own.lengths:
            measured = seconds[str(length)]
            kept = sum(tensor.nbytes for layer in states[length] for tensor in layer.values()) // own.batch_size
            cells = [
                f"{own.batch_size * _STEPS / statistics.median(measured):,.0f}",
                str(ratio(measured, seconds[str(min(own.lengths))])),
                f"{kept / 1e3:,.1f}",
            ]
            page.add(f"{row}, after {length:,} tokens", cells, {"seconds": measured, "bytes": kept})
    return page


def _configuration(attention: str, length: int, overrides: Sequence[str]) -> RunConfig:
    small = [f"task.dims.{name}={size}" for name, size in SMALL.items()]
    line = ["task=char_lm/enwik8", f"attention={attention}", f"task.data_options.max_length={length}"]
    # The models' positions and windows follow the length of the data.
    return configuration([*line, f"task.dims.max_length={length}", *small, "recipe.attention_dropout=0", *overrides])


def _told(own: Language, configs: dict[str, RunConfig] | dict[tuple[str, int], RunConfig]) -> str:
    options = next(iter(configs.values())).backbone.options
    return (
        f"depth {options['depth']}, width {options['dim']}, {options['num_heads']} heads;"
        f" medians of {own.rounds} rounds"
    )


def _update(config: RunConfig, batch_size: int, length: int, device: torch.device) -> Callable[[], None]:
    task = build_task(config, data_facts(config).shape).to(device).train()
    optimizer = make_optimizer(task.model, config.recipe.optimizer)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(task.num_outputs, (batch_size, length), generator=generator).to(device)
    return partial(update, task, optimizer, x, None, x)


@torch.no_grad()
def _states(model: ARDecoder, lengths: Sequence[int], batch_size: int, device: torch.device) -> dict[int, DecoderState]:
    """The state after each of `lengths` tokens, all token 0."""
    state, kept = model.initial_state(batch_size), {}
    previous = None
    for place in range(max(lengths)):
        _, state = model.step(previous, place, state)
        previous = torch.zeros(batch_size, dtype=torch.int64, device=device)
        if place + 1 in lengths:
            kept[place + 1] = [{name: tensor.clone() for name, tensor in layer.items()} for layer in state]
    return kept


@torch.no_grad()
def _continue(model: ARDecoder, state: DecoderState, length: int, batch_size: int, device: torch.device) -> None:
    previous = torch.zeros(batch_size, dtype=torch.int64, device=device)
    for place in range(length, length + _STEPS):
        _, state = model.step(previous, place, state)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
