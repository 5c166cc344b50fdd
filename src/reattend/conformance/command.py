"""The command `scripts/check_attention.py`."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from reattend.attention import MixerFactory, MixerSpec
from reattend.config import (
    RunConfig,
    build_mixer_factory,
    check_mixers,
    check_overrides,
    compose,
    normalise_overrides,
    read,
)
from reattend.config.limits import Count, Limit, NonNegativeInt
from reattend.config.problems import refuse
from reattend.conformance.check import run
from reattend.conformance.page import as_markdown, as_text, verdict
from reattend.conformance.results import Report
from reattend.efficiency.arguments import read_own
from reattend.efficiency.page import check_writable
from reattend.efficiency.scaling import squarest
from reattend.errors import ReattendError
from reattend.runs.files import write_bytes
from reattend.train.devices import prepare_cpu

USAGE = """\
python scripts/check_attention.py attention=NAME [length=24] [dim=16] [heads=2] [batch_size=3] [causal=auto]
    [grid=4x6] [prefix_tokens=0] [scaling=true] [page=FILE.md] [any override]
your own: attention=custom attention.target=my_module.MyMixer attention.options.k=v
checks a mechanism and prints a page; exit code 0: all passed, 1: some failed, 2: a mistake in the command"""


@dataclass(frozen=True)
class Options:
    """Where the mechanism is checked, and what is done with the result.

    Attributes:
        length: largest number of tokens; with a grid its product and the prefix.
        dim: width of the tokens.
        heads: number of heads.
        batch_size: samples at once.
        causal: whether it is built causal; auto for both where it can be.
        grid: extents of a grid of tokens; None for a sequence, or where a grid is needed the squarest of `length`.
        prefix_tokens: tokens in front of the sequence or grid.
        scaling: measure how time and memory grow with length too, some seconds.
        page: Markdown file that the page is written to as well.
    """

    length: Annotated[int, Limit("at least", 4)] = 24
    dim: Count = 16
    heads: Count = 2
    batch_size: Count = 3
    causal: Literal["auto", True, False] = "auto"
    grid: tuple[Count, ...] | None = None
    prefix_tokens: NonNegativeInt = 0
    scaling: bool = True
    page: Path | None = None

    def problems(self) -> list[str]:
        """What is wrong with the values together; empty if nothing."""
        if self.grid is None and self.prefix_tokens >= self.length:
            return [f"prefix_tokens={self.prefix_tokens} leaves none of length={self.length} tokens behind the prefix"]
        return []


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks what is asked for, prints the page, and returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or {"-h", "--help"} & set(given):
        print(USAGE, file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    try:
        reports = check_attention(given)
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if any(report.having("failed") for report in reports) else 0


def check_attention(arguments: Sequence[str]) -> list[Report]:
    """Checks each kind of mixer that the arguments ask for, printing a page for each.

    Raises:
        ReattendError: for mistakes in the arguments, or a mechanism that cannot be built for them.
    """
    options, overrides = read_own(Options, arguments, USAGE)
    check_overrides(overrides)
    if options.page is not None:
        check_writable("page", options.page)
    common = [
        f"backbone.options.dim={options.dim}",
        f"backbone.options.num_heads={options.heads}",
        f"scales.value={[1 + head % 2 for head in range(options.heads)]}",
        "recipe.attention_dropout=0",
    ]
    config = read(compose([*common, *normalise_overrides(overrides)]))
    printed = io.StringIO()
    with redirect_stdout(printed):
        factory = build_mixer_factory(config)
    prepare_cpu(config.trainer)
    place = MixerSpec(
        dim=options.dim,
        num_heads=options.heads,
        max_length=options.length,
        prefix_tokens=options.prefix_tokens,
        num_layers=int(config.backbone.options.get("depth", 1)),
    )
    reports: list[Report] = []
    for name, kind, spec in factory.kinds(place):
        asked = " ".join([*([name.strip()] if name else []), *arguments])
        with redirect_stdout(printed):
            specs = _places(config, kind, spec, options)
            report = run(kind, specs, batch_size=options.batch_size, costly=options.scaling, asked=asked)
        report, printed = replace(report, printed=printed.getvalue()), io.StringIO()
        _tell(("\n" if reports else "") + as_text(report))
        reports.append(report)
    if options.page is not None:
        _write(options.page, reports)
    return reports


def _places(config: RunConfig, kind: MixerFactory, spec: MixerSpec, options: Options) -> list[MixerSpec]:
    """The places that `kind` is checked at, which it must fit."""
    grid = options.grid
    if grid is None and not kind.problems(replace(spec, grid=(1, 1))) and kind.capabilities.needs_grid:
        grid = squarest(options.length - options.prefix_tokens, 2)
    if grid is not None:
        spec = replace(spec, grid=grid, max_length=options.prefix_tokens + math.prod(grid))
    wanted = [False, True] if options.causal == "auto" else [options.causal]
    specs = [replace(spec, causal=causal) for causal in wanted]
    if options.causal == "auto" and kind.problems(specs[1]) and not kind.problems(specs[0]):
        specs = specs[:1]
    refuse(check_mixers(config, specs[0]), USAGE)
    return specs


def _write(path: Path, reports: Sequence[Report]) -> None:
    write_bytes(path, "\n".join(map(as_markdown, reports)).encode())
    _tell(f"\nThe page is in {path}: {'; '.join(map(verdict, reports))}")


def _tell(text: str) -> None:
    """Prints; once nobody reads any more (`| head`), what follows goes nowhere."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
