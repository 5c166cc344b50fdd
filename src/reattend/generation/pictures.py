"""Pictures by sub-pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from reattend.config.schema import RunConfig
from reattend.data.samplers import MicroBatch
from reattend.efficiency.page import check_writable
from reattend.errors import ReattendError
from reattend.generation.medium import Medium
from reattend.generation.options import Options
from reattend.runs.files import replacing
from reattend.train.execute import build_data

_BATCH = 16
_SHOWN_SIDE = 96  # pixels of the sheet that a picture has at least
_GAP = 4
_WHITE = 255


class Pictures(Medium):
    """A sheet of pictures, as square as their number allows, as a PNG.

    Those of few pixels are enlarged by a whole factor.
    """

    unit: ClassVar[str] = "sub-pixels"
    options: ClassVar[Mapping[str, str]] = {"out": "out=FILE.png", "prompt_rows": "prompt_rows=R"}

    def __init__(self, config: RunConfig, options: Options, places: int) -> None:
        if options.out is None:
            raise ReattendError(f"{options.run} is of {config.task.name}: where shall its pictures go? out=FILE.png")
        if options.out.suffix.lower() != ".png":
            raise ReattendError(
                f"out={options.out}: pictures are written as PNG. out={options.out.with_suffix('.png')}"
            )
        check_writable("out", options.out)
        self.config = config
        self.out = options.out
        self.samples = options.batch or _BATCH
        self.side: int = config.task.data_options["image_size"]
        self.rows = options.prompt_rows or 0
        if self.rows >= self.side:
            raise ReattendError(
                f"prompt_rows={self.rows}: pictures have {self.side} rows, of which some are to be drawn. "
                f"prompt_rows={self.side - 1} at most."
            )
        self.places = places

    def prompt(self) -> Tensor:
        """The first rows of the first test images."""
        if not self.rows:
            return torch.zeros(self.samples, 0, dtype=torch.int64)
        test = build_data(self.config).test
        if len(test) < self.samples:
            raise ReattendError(f"batch={self.samples}: test has {len(test)} images. batch={len(test)} at most.")
        images: Tensor = test[MicroBatch(torch.arange(self.samples), torch.ones(self.samples), self.samples)]["x"]
        return images[:, : self.rows * self.places // self.side]

    def length(self) -> int:
        """The rest of a picture."""
        return self.places - self.rows * self.places // self.side

    def show(self, tokens: Tensor) -> str:
        """Writes the sheet, and names it."""
        pictures = tokens.reshape(len(tokens), self.side, self.side, -1).to(torch.uint8).numpy()
        whole = sheet(pictures)
        with replacing(self.out) as temporary:
            Image.fromarray(whole[..., 0] if whole.shape[-1] == 1 else whole).save(temporary, "PNG")
        return str(self.out)


def sheet(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pictures (B, S, S, C) side by side on white, row by row, (height, width, C)."""
    factor = math.ceil(_SHOWN_SIDE / pictures.shape[1])
    large = pictures.repeat(factor, 1).repeat(factor, 2)
    count, side, _, channels = large.shape
    columns = math.ceil(math.sqrt(count))
    step = side + _GAP
    whole = np.full((math.ceil(count / columns) * step + _GAP, columns * step + _GAP, channels), _WHITE, np.uint8)
    for number, picture in enumerate(large):
        top, left = (_GAP + place * step for place in divmod(number, columns))
        whole[top : top + side, left : left + side] = picture
    return whole
