"""Options of the command `scripts/generate.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reattend.config.limits import Count, NonNegative, NonNegativeInt, Share

USAGE = """\
python scripts/generate.py run=FOLDER [batch=B] [temperature=1.0] [top_k=K] [top_p=1.0] [seed=0] [which=best|last]
FOLDER is outputs/runs/<task>/<attention>/ar_decoder/s<seed>-<fingerprint>; temperature=0 takes the likeliest each time
a run of char_lm/* or word_lm/* goes on with a text: [prompt=TEXT] [length=200], in bytes or words
a run of image_ar/* draws a sheet of pictures: out=FILE.png [prompt_rows=R], the first R rows those of test images"""


@dataclass(frozen=True)
class Options:
    """What is generated, and how.

    Attributes:
        run: the run's folder.
        prompt: text that is continued.
        length: tokens of text that are drawn.
        prompt_rows: how many rows of pictures are those of test images.
        out: file of the sheet of pictures.
        batch: how many samples; None for what is usual.
        temperature, top_k, top_p: see `Sampling`.
        seed: of the draws.
        which: weights of the selected epoch, or of the last.
    """

    run: str
    prompt: str | None = None
    length: Count | None = None
    prompt_rows: Count | None = None
    out: Path | None = None
    batch: Count | None = None
    temperature: NonNegative = 1.0
    top_k: Count | None = None
    top_p: Share = 1.0
    seed: NonNegativeInt = 0
    which: str = "best"
