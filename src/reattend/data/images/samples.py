"""A split of images as micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from reattend.data.images.decoding import BadImageError
from reattend.data.images.known import Statistics
from reattend.data.images.mixing import Mixing
from reattend.data.images.randomness import borrowed_generators, seed_generators
from reattend.data.images.stored import Stored
from reattend.data.images.transforms import Transform
from reattend.data.sampled import Batch
from reattend.data.samplers import MicroBatch
from reattend.seeding import derive

UNREADABLE = "unreadable"  # key of a batch: name and reason of each file that is no image
_GREY = 128


@dataclass(frozen=True)
class Samples:
    """A split, indexed by whole micro-batches.

    An image that cannot be decoded is grey, has weight 0 and is named in the batch, so that it counts nowhere.

    Attributes:
        stored: the images of the file.
        indices: places there of the split's images.
        change: what is done to an image; it gives size S x S.
        image_size: S.
        statistics: what images are normalised with.
    """

    stored: Stored
    indices: NDArray[np.int64]
    change: Transform
    image_size: int
    statistics: Statistics

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, batch: MicroBatch) -> Batch:
        """`x`, `padding_mask`, `y`, `weight` and `global_size` of the batch."""
        rows = self.indices[batch.indices.numpy()]
        pixels = np.empty((len(rows), self.image_size, self.image_size, len(self.statistics[0])), dtype=np.uint8)
        weight, unreadable = batch.weight.clone(), {}
        image, decoded = None, -1
        for place, row in enumerate(rows.tolist()):
            if row != decoded:  # repeated augmentation: its copies follow each other
                try:
                    image, decoded = self.stored.image(row), row
                except BadImageError as error:
                    image, decoded = None, row
                    unreadable[self.stored.name(row)] = str(error)
            if image is None:
                pixels[place], weight[place] = _GREY, 0.0
            else:
                pixels[place] = np.asarray(self.changed(image, batch, place)).reshape(pixels.shape[1:])
        y = torch.from_numpy(np.asarray(self.stored.labels)[rows])
        x = self.normalised(pixels)
        whole: dict[str, Any] = {"x": x, "padding_mask": None, "y": y, "weight": weight}
        return {**whole, "global_size": batch.global_size, **({UNREADABLE: unreadable} if unreadable else {})}

    def changed(self, image: Image.Image, batch: MicroBatch, place: int) -> Image.Image:
        """The image of a row in its size."""
        return self.change(image)

    def normalised(self, pixels: NDArray[np.uint8]) -> Tensor:
        """(B, S, S, C) in 0..255 to (B, C, S, S), less the mean over the deviation of each channel."""
        mean, deviation = (torch.tensor(values).view(1, -1, 1, 1) for values in self.statistics)
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return x.div_(255).sub_(mean).div_(deviation)


@dataclass(frozen=True)
class TrainingSamples(Samples):
    """A split that is augmented.

    What is drawn for row i of a micro-batch depends on (seed, epoch, start + i) alone, what is drawn for the batch as a
    whole on (seed, epoch, start): not on who loads it, nor on what was loaded before.

    Attributes:
        seed: of the run.
        erase: replaces a rectangle of a normalised image in place.
        mix: spreads and mixes labels.
    """

    seed: int
    erase: Any
    mix: Mixing | None

    def __getitem__(self, batch: MicroBatch) -> Batch:
        """As without augmentation; with mixing or smoothing `y` has the classes' shares (B, classes), float32."""
        with borrowed_generators():
            whole = super().__getitem__(batch)
            x = whole["x"]
            if self.erase is not None:
                for place in range(len(x)):
                    seed_generators(derive(self.seed, "augmentation", batch.epoch, batch.start + place, "erasing"))
                    self.erase(x[place])
            if self.mix is not None:
                seed_generators(derive(self.seed, "mixup", batch.epoch, batch.start))
                whole["x"], whole["y"] = self.mix(x, whole["y"], self._whole(batch, whole.get(UNREADABLE, {})))
        return whole

    def _whole(self, batch: MicroBatch, unreadable: dict[str, str]) -> Tensor:
        """Which rows, fillers among them, have an image (B,)."""
        names = (self.stored.name(row) for row in self.indices[batch.indices.numpy()].tolist())
        return torch.tensor([not unreadable or name not in unreadable for name in names])

    def changed(self, image: Image.Image, batch: MicroBatch, place: int) -> Image.Image:
        """The image of a row, augmented."""
        seed_generators(derive(self.seed, "augmentation", batch.epoch, batch.start + place))
        return self.change(image)
