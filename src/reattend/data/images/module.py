"""Data module of images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from reattend.config.limits import Count, CropRatio, NonNegativeInt
from reattend.config.schema import AugmentationConfig
from reattend.data.images.known import IMAGENET
from reattend.data.images.loading import ImageLoader, usual_workers
from reattend.data.images.mixing import mixing
from reattend.data.images.samples import Samples, TrainingSamples
from reattend.data.images.sets import Form, image_set
from reattend.data.images.transforms import Interpolation, erasing, evaluation_transform, training_transform
from reattend.data.preparation import hold_out
from reattend.data.sampled import Batch, SampledData
from reattend.data.sampled import Samples as AnySamples
from reattend.data.samplers import EvalSampler, TrainSampler


class ImageData(SampledData):
    """Training, validation and test split of a set of images.

    `x` has normalised images (B, C, S, S), float32: less the mean over the deviation of each channel, ImageNet's for
    images in colour, Fashion-MNIST's own (0.286 and 0.353). `padding_mask` is None. `y` has classes (B,), int64; in
    training their shares (B, classes), float32, where labels are smoothed or mixed. With `selection="validation"` a
    part of train is held out, stratified by class and drawn by `split_seed` alone.

    Test is ImageNet's validation set, as everywhere. An image that cannot be decoded has weight 0 and is named once.

    The trainer has to leave the samplers as they are (`use_distributed_sampler=False`).

    Attributes:
        train, validation, test: the splits; `validation` is None with `selection="test"`.
        shape: `image_size`, `channels` and `num_outputs`.
        kind: "classification".
        checksum: over names, sizes and classes of encoded images, over the pixels of others; of a stand-in with encoded
            images over its rule.
        origin: "stand-in", or the form that the images are in.
        sizes: images of each split that is used.
        unreadable: files that were no images, with the reason.

    Args:
        dataset: "imagenet-1k", "imagenet-100", "fashion_mnist", "cifar10", or a folder of a person's own in `root`.
        root: folder of all data.
        image_size: S in pixels.
        crop_ratio: of evaluation: S over the short side that images are resized to.
        interpolation: of all resizing.
        form: of the files; None is the one that is there.
        class_list: see `ImageSet`.
        test_sizes: further S that test is evaluated at.
        augmentation: of training images and labels.
        loader_workers: processes that decode, for each loader; None: see `usual_workers`, for data in memory none.
        pinned: whether batches are put where a GPU copies them from at once, if there is one.
        standin: use the generated stand-in instead.
        selection: what `val_dataloader` gives.
        validation_fraction: of training, where it is held out.
        split_seed: draws that part.
        batch_size: global, over all devices and accumulated micro-batches.
        steps_per_epoch: see `TrainSampler`.
        seed: of the run; it fixes the order of training samples, and with it what is drawn for each.
        devices: number of processes that train together.
        accumulation: micro-batches per optimiser step.

    Raises:
        ReattendError: `batch_size` does not divide, or data is missing, not prepared or damaged.
    """

    kind = "classification"
    gives = ("image_size", "channels", "num_outputs")
    train: TrainingSamples
    validation: Samples | None
    test: Samples

    def __init__(
        self,
        dataset: str | None,
        *,
        root: str | Path,
        batch_size: int,
        seed: int,
        image_size: Count,
        crop_ratio: CropRatio = 1.0,
        interpolation: Interpolation = "bicubic",
        form: Form | None = None,
        class_list: str | None = None,
        test_sizes: list[Count] | None = None,
        augmentation: AugmentationConfig | None = None,
        loader_workers: NonNegativeInt | None = None,
        pinned: bool = True,
        steps_per_epoch: int | None = None,
        standin: bool = False,
        selection: Literal["test", "validation"] = "test",
        validation_fraction: float = 0.0,
        split_seed: int = 0,
        devices: int = 1,
        accumulation: int = 1,
    ) -> None:
        super().__init__(batch_size, seed, steps_per_epoch, devices, accumulation)
        augmentation = augmentation or AugmentationConfig()
        images = image_set(dataset, root, standin, form, class_list)
        opened = images.open()
        self.checksum = opened.checksum
        self.origin = "stand-in" if standin else opened.origin
        channels = images.known.channels if images.known else 3
        self.shape = {"image_size": image_size, "channels": channels, "num_outputs": len(opened.classes)}
        self.repeats = augmentation.repeats
        self.pinned = pinned and torch.cuda.is_available()
        usual = 0 if images.in_memory else usual_workers(devices)
        self.workers = usual if loader_workers is None else loader_workers
        self.unreadable: dict[str, str] = {}
        self._resizing = (crop_ratio, interpolation)
        self._test_sizes = list(test_sizes or [])
        statistics = images.known.statistics if images.known else IMAGENET
        train, test = opened.splits["train"], opened.splits["test"]
        evaluated = evaluation_transform(image_size, *self._resizing)
        kept = np.arange(len(train))
        self.validation = None
        if selection == "validation":
            kept, held = hold_out(np.asarray(train.labels), len(train), validation_fraction, split_seed)
            self.validation = Samples(train, held, evaluated, image_size, statistics)
        self.train = TrainingSamples(
            train,
            kept,
            training_transform(augmentation, image_size, *self._resizing, mean=statistics[0]),
            image_size,
            statistics,
            seed,
            erasing(augmentation.random_erasing),
            mixing(augmentation, len(opened.classes)),
        )
        self.test = Samples(test, np.arange(len(test)), evaluated, image_size, statistics)

    def loader(self, samples: AnySamples, sampler: TrainSampler | EvalSampler) -> DataLoader[Batch]:
        """Loads what the sampler says, in this process or in workers."""
        return ImageLoader(samples, sampler, workers=self.workers, pinned=self.pinned, unreadable=self.unreadable)

    def further_tests(self) -> dict[str, AnySamples]:
        """Test at other sizes of images, by the names "test_384" and so on."""
        return {
            f"test_{size}": replace(self.test, change=evaluation_transform(size, *self._resizing), image_size=size)
            for size in self._test_sizes
        }
