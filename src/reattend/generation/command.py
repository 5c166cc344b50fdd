"""The command `scripts/generate.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from reattend.backbones import ARDecoder
from reattend.efficiency.arguments import read_own
from reattend.errors import ReattendError
from reattend.generation.medium import medium_of
from reattend.generation.options import USAGE, Options
from reattend.generation.sampling import Sampling, continued
from reattend.runs.load import load, load_config
from reattend.seeding import derive


def main(arguments: Sequence[str] | None = None) -> int:
    """Shows what a trained model makes; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or {"-h", "--help"} & set(given):
        print(USAGE, file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    try:
        # A prompt is text, whatever it looks like.
        prompts = [argument.partition("=")[2] for argument in given if argument.startswith("prompt=")]
        options, others = read_own(Options, [a for a in given if not a.startswith("prompt=")], USAGE)
        if others:
            raise ReattendError(f"{' '.join(others)}: a trained model is used as it is.\n{USAGE}")
        shown, speed = generate(replace(options, prompt=prompts[-1]) if prompts else options)
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2
    print(shown)
    print(speed, file=sys.stderr)
    return 0


def generate(options: Options) -> tuple[str, str]:
    """What is printed of the samples, and how fast they were drawn.

    Raises:
        ReattendError: there is no such run, it holds no decoder, options do not suit it, or there are more tokens than
            places.
    """
    folder = Path(options.run)
    model = load(folder, options.which)
    if not isinstance(model, ARDecoder):
        raise ReattendError(f"{folder} holds no autoregressive model: runs of char_lm/*, word_lm/* and image_ar/* do.")
    medium = medium_of(load_config(folder), options, model.max_length)
    prompt, length = medium.prompt(), medium.length()
    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    generator = torch.Generator().manual_seed(derive(options.seed, "generation"))
    start = time.perf_counter()
    drawn = torch.stack(list(continued(model, prompt, length, sampling, generator)), 1)
    seconds = time.perf_counter() - start
    return medium.show(torch.cat([prompt, drawn], 1)), f"{drawn.numel() / seconds:,.0f} {medium.unit}/s"
