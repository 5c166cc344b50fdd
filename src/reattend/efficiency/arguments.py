"""Arguments of `scripts/measure.py`: its own, and overrides of the configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch

from reattend.attention import MixerSpec
from reattend.config.binding import bind_dataclass
from reattend.config.groups import group_defaults
from reattend.config.limits import Count
from reattend.config.problems import refuse
from reattend.config.schema import RunConfig
from reattend.efficiency.scaling import squarest
from reattend.errors import nearest

Own = TypeVar("Own")


@dataclass(frozen=True)
class Shape:
    """What layers are measured at.

    Attributes:
        length: number of tokens N.
        dim: width D of the tokens.
        heads: number of heads.
        batch_size: sequences at once.
        rounds: how often each layer is timed.
        causal: whether the layers are built causal, fused softmax among them; None leaves it to the measure.
        grid: extents for attentions that work on a grid; the squarest if it is left out.
        device: `auto` is the GPU where there is one.
    """

    length: Count = 4096
    dim: Count = 64
    heads: Count = 2
    batch_size: Count = 4
    rounds: Count = 10
    causal: bool | None = None
    grid: list[Count] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __str__(self) -> str:
        causal = ", causal" if self.causal else ""
        return f"{self.length} tokens, dim {self.dim}, {self.heads} heads, batch {self.batch_size}{causal}"

    def spec(self, needs_grid: bool = False) -> MixerSpec:
        """The place of the layers; only those that need a grid are told one."""
        grid = tuple(self.grid or squarest(self.length, 2)) if needs_grid else None
        return MixerSpec(
            dim=self.dim, num_heads=self.heads, max_length=self.length, grid=grid, causal=bool(self.causal)
        )

    def torch_device(self) -> torch.device:
        has_gpu = torch.cuda.is_available()
        return torch.device("cuda" if self.device == "cuda" or (self.device == "auto" and has_gpu) else "cpu")

    def problems(self) -> list[str]:
        """What is wrong with the values together; empty if nothing."""
        found = []
        if self.grid and torch.Size(self.grid).numel() != self.length:
            found.append(f"grid={'x'.join(map(str, self.grid))} is no grid of length={self.length} tokens")
        if self.device == "cuda" and not torch.cuda.is_available():
            found.append(f"device=cuda, but torch {torch.__version__} sees no CUDA device")
        return found


def read_own(kind: type[Own], arguments: Sequence[str], usage: str) -> tuple[Own, list[str]]:
    """An instance of the dataclass `kind` from those arguments that are its fields, and the other arguments.

    Raises:
        ConfigError: with everything that is wrong, and `usage`.
    """
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    given = {name: _parse(text, hints[name]) for name, text in map(split, arguments) if name in names}
    problems = [problem for argument in arguments if (problem := _unknown(argument, names))]
    bound = bind_dataclass(kind, given, "", problems)
    if not problems and hasattr(bound, "problems"):
        problems += bound.problems()
    refuse(problems, usage)
    return bound, [argument for argument in arguments if split(argument)[0] not in names]


def split(argument: str) -> tuple[str, str]:
    """Key and value of `key=value`."""
    key, _, value = argument.partition("=")
    return key, value


def _unknown(argument: str, own: Collection[str]) -> str:
    """What is wrong with a value for a single name that nothing has; "" for all other arguments."""
    key = split(argument)[0]
    others = {*group_defaults(), *(field.name for field in fields(RunConfig))}
    if not re.match(r"[A-Za-z]\w*=", argument) or key in {*own, *others, "hydra"}:
        return ""
    return f"{argument}: there is no option '{key}'.{nearest(key, own) or nearest(key, others)}"


def _parse(text: str, hint: Any) -> Any:
    origins = {get_origin(kind) for kind in (hint, *get_args(hint))}
    if origins & {list, tuple}:
        return [_scalar(part) for part in re.split(r",|(?<=\d)x(?=\d)", text)]
    return _fraction(text) if float in (hint, *get_args(hint)) else _scalar(text)


def _fraction(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _scalar(text: str) -> int | bool | str:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.removeprefix("-").isdecimal() else text
