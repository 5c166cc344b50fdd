"""The command `scripts/generate.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from reattend.backbones import ARDecoder
from reattend.config.limits import Count, NonNegative, NonNegativeInt, Share
from reattend.efficiency.arguments import read_own
from reattend.errors import ReattendError
from reattend.generation.sampling import Sampling, continued
from reattend.runs.load import load

USAGE = """\
python scripts/generate.py run=FOLDER [prompt=TEXT] [length=200] [batch=1] [temperature=1.0] [top_k=K] [top_p=1.0]
    [seed=0] [which=best|last]
continues a text with a model that a run of char_lm/* trained; FOLDER is outputs/runs/<task>/<attention>/ar_decoder/...
temperature=0 takes the likeliest byte each time"""


@dataclass(frozen=True)
class Options:
    """What is generated, and how.

    Attributes:
        run: the run's folder.
        prompt: what is continued.
        length: bytes that are drawn.
        batch: how many continuations.
        temperature, top_k, top_p: see `Sampling`.
        seed: of the draws.
        which: weights of the selected epoch, or of the last.
    """

    run: str
    prompt: str = ""
    length: Count = 200
    batch: Count = 1
    temperature: NonNegative = 1.0
    top_k: Count | None = None
    top_p: Share = 1.0
    seed: NonNegativeInt = 0
    which: str = "best"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the continuations, each behind its prompt; returns the exit code."""
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
        texts, seconds = generate(replace(options, prompt=prompts[-1]) if prompts else options)
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n---\n".join(texts))
    print(f"{options.length * options.batch / seconds:,.0f} bytes/s", file=sys.stderr)
    return 0


def generate(options: Options) -> tuple[list[str], float]:
    """Prompt and continuation of each sample, and the seconds that drawing took.

    Raises:
        ReattendError: there is no such run, it is no model of bytes, or there are more bytes than places.
    """
    model = load(Path(options.run), options.which)
    if not isinstance(model, ARDecoder):
        raise ReattendError(f"{options.run} holds no autoregressive model: runs of char_lm/* do.")
    ids = torch.tensor(list(options.prompt.encode()), dtype=torch.int64).expand(options.batch, -1)
    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    generator = torch.Generator().manual_seed(options.seed)
    start = time.perf_counter()
    drawn = torch.stack(list(continued(model, ids, options.length, sampling, generator)), 1)
    seconds = time.perf_counter() - start
    whole = torch.cat([ids, drawn], 1)
    return [bytes(row).decode(errors="replace") for row in whole.tolist()], seconds
