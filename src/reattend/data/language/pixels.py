"""Images as sequences of sub-pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from reattend.config.limits import Count, NonNegativeInt, Share
from reattend.data.images.sets import image_set
from reattend.data.images.stored import InMemory, Stored
from reattend.data.language.pixel_source import LEVELS, check_name, shape_of
from reattend.data.preparation import hold_out
from reattend.data.sampled import Batch, SampledData
from reattend.data.samplers import MicroBatch
from reattend.errors import ReattendError
from reattend.seeding import derive


@dataclass(frozen=True)
class PixelSamples:
    """A split of images, indexed by whole micro-batches; token t = C (S row + column) + channel of an image's.

    Attributes:
        pixels: all images of the file (n, S, S, C), uint8.
        indices: places there of the split's images.
    """

    pixels: NDArray[np.uint8]
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, batch: MicroBatch) -> Batch:
        """`x` (B, C S^2) in 0..255, int64; `y` is the same; `padding_mask` None, `weight`, `global_size`."""
        images = self.changed(self.pixels[self.indices[batch.indices.numpy()]], batch)
        tokens = torch.from_numpy(images.reshape(len(images), -1)).long()
        return {
            "x": tokens,
            "padding_mask": None,
            "y": tokens,
            "weight": batch.weight,
            "global_size": batch.global_size,
        }

    def changed(self, images: NDArray[np.uint8], batch: MicroBatch) -> NDArray[np.uint8]:
        """The images of a micro-batch (B, S, S, C)."""
        return images


@dataclass(frozen=True)
class AugmentedPixels(PixelSamples):
    """A split whose images are flipped, then made lighter or darker: clip(x + m, 0, 255) in all sub-pixels.

    What is drawn for row i of a micro-batch depends on (seed, epoch, start + i) alone.

    Attributes:
        seed: of the run.
        flip: probability of a horizontal flip.
        max_shift: m is one integer for an image, uniform in [-max_shift, max_shift].
    """

    seed: int
    flip: float
    max_shift: int

    def changed(self, images: NDArray[np.uint8], batch: MicroBatch) -> NDArray[np.uint8]:
        """The images of a micro-batch, augmented."""
        levels = images.astype(np.int16)
        for row, image in enumerate(levels):
            random = np.random.default_rng(derive(self.seed, "augmentation", batch.epoch, batch.start + row))
            if random.random() < self.flip:
                image[:] = image[:, ::-1].copy()
            image += random.integers(-self.max_shift, self.max_shift, endpoint=True, dtype=np.int16)
        return levels.clip(0, LEVELS - 1).astype(np.uint8)


class PixelData(SampledData):
    """Training, validation and test split of a set of small images, sub-pixel by sub-pixel.

    An image is a sequence of N = C S^2 levels in 0..255: row by row from the top left, the channels (R, G, B) of a
    pixel one after the other. With `selection="validation"` a part of train is held out, stratified by class.

    The trainer has to leave the samplers as they are (`use_distributed_sampler=False`).

    Attributes:
        train, validation, test: the splits; `validation` is None with `selection="test"`.
        shape: `vocabulary`, `max_length` and `num_outputs`.
        kind: "language_modelling".
        checksum: over pixels and classes.
        origin: "stand-in", or the form of the files.
        sizes: images of each split that is used.

    Args:
        dataset: "cifar10" or "fashion_mnist".
        root: folder of all data.
        image_size: S; pixels of smaller images than the set's own are means over squares.
        flip, max_shift: augmentation of training, see `AugmentedPixels`; 0 does without.
        standin: use the generated stand-in instead.
        selection: what `val_dataloader` gives.
        validation_fraction: of training, where it is held out.
        split_seed: draws that part.
        batch_size: global, over all devices and accumulated micro-batches.
        steps_per_epoch: see `TrainSampler`.
        seed: of the run; with the epoch it fixes the order of training samples, and with it what is drawn for each.
        devices: number of processes that train together.
        accumulation: micro-batches per optimiser step.

    Raises:
        ReattendError: `batch_size` or `image_size` does not divide, or data is missing or damaged.
    """

    kind = "language_modelling"
    gives = ("vocabulary", "max_length", "num_outputs")
    train: AugmentedPixels
    validation: PixelSamples | None
    test: PixelSamples

    def __init__(
        self,
        dataset: str | None,
        *,
        root: str | Path,
        batch_size: int,
        seed: int,
        image_size: Count,
        flip: Share = 0.0,
        max_shift: NonNegativeInt = 0,
        steps_per_epoch: int | None = None,
        standin: bool = False,
        selection: Literal["test", "validation"] = "test",
        validation_fraction: float = 0.0,
        split_seed: int = 0,
        devices: int = 1,
        accumulation: int = 1,
    ) -> None:
        super().__init__(batch_size, seed, steps_per_epoch, devices, accumulation)
        check_name(dataset)
        opened = image_set(dataset, root, standin, None, None).open()
        self.checksum = opened.checksum
        self.origin = "stand-in" if standin else opened.origin
        train, test = (_pixels(opened.splits[split], image_size) for split in ("train", "test"))
        self.shape = shape_of(image_size, train.shape[-1])
        kept, self.validation = np.arange(len(train)), None
        if selection == "validation":
            labels = np.asarray(opened.splits["train"].labels)
            kept, held = hold_out(labels, len(train), validation_fraction, split_seed)
            self.validation = PixelSamples(train, held)
        self.train = AugmentedPixels(train, kept, seed, flip, max_shift)
        self.test = PixelSamples(test, np.arange(len(test)))


def averaged(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Images (n, side, side, C) whose pixels are the means of squares of (n, S, S, C), rounded half up.

    Raises:
        ReattendError: S is no multiple of `side`.
    """
    count, whole, _, channels = pixels.shape
    if whole % side:
        near = min((size for size in range(1, whole + 1) if whole % size == 0), key=lambda size: abs(size - side))
        raise ReattendError(
            f"task.data_options.image_size={side}: images of {whole} x {whole} pixels are averaged over squares, which "
            f"{side} does not allow. Nearest valid: {near}."
        )
    squares = pixels.reshape(count, side, whole // side, side, whole // side, channels)
    means = squares.mean((2, 4), dtype=np.float32)
    levels: NDArray[np.uint8] = np.floor(means + np.float32(0.5)).astype(np.uint8)
    return levels


def _pixels(stored: Stored, side: int) -> NDArray[np.uint8]:
    """Images (n, side, side, C)."""
    assert isinstance(stored, InMemory)
    pixels = stored.pixels if stored.pixels.ndim == 4 else stored.pixels[..., None]
    return pixels if side == pixels.shape[1] else averaged(pixels, side)
