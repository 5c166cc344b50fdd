"""Data module for classification and regression of whole time series."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from reattend.data.archive import SeriesFiles, locate
from reattend.data.checks import FileFacts, check_known, check_pair
from reattend.data.preparation import Standardiser, class_codes, class_names, hold_out, interpolate_missing, pad
from reattend.data.sampled import Batch, SampledData
from reattend.data.samplers import MicroBatch
from reattend.data.standin import stand_in
from reattend.data.ts_format import TimeSeriesFile, read_ts


@dataclass(frozen=True)
class Samples:
    """A split in memory, indexed by whole micro-batches.

    Attributes:
        x: standardised, padded series (cases, N, C), float32.
        padding_mask: True at real steps (cases, N); None where every series of every split has N steps.
        y: class codes, int64, or targets, float32 (cases,).
    """

    x: Tensor
    padding_mask: Tensor | None
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, batch: MicroBatch) -> Batch:
        """`x`, `padding_mask`, `y`, `weight` and `global_size` of the batch."""
        return {
            "x": self.x[batch.indices],
            "padding_mask": None if self.padding_mask is None else self.padding_mask[batch.indices],
            "y": self.y[batch.indices],
            "weight": batch.weight,
            "global_size": batch.global_size,
        }


class TimeSeriesData(SampledData):
    """Training, validation and test split of a set of the UEA, UCR or TSER archive, read and prepared when it is made.

    Preparation follows gzerveas/mvts_transformer: missing values interpolated, then each channel standardised with the
    statistics of training, padded with zeros to the longest training series, longer ones clipped. Classes are coded by
    their sorted names in the training file. With `selection="validation"` (protocol strict) a part of the training file
    is held out before any statistic is taken, stratified by class and drawn by `split_seed` alone.

    The trainer has to leave the samplers as they are (`use_distributed_sampler=False`).

    Attributes:
        train, validation, test: the splits; `validation` is None with `selection="test"`.
        shape: `num_channels`, `max_length` and `num_outputs` (classes, or 1 for regression).
        kind: "classification" or "regression", as the files say.
        class_names: by code; empty for regression.
        checksum: SHA-256 over both files.
        origin: "folder", "zip", "sktime" or "stand-in".
        sizes: cases of each split.

    Args:
        dataset: name of the set, as in `<dataset>_TRAIN.ts`.
        archive: "uea", "ucr" or "tser".
        root: folder to look in first, see `reattend.data.archive.locate`.
        standin: use the generated stand-in instead.
        selection: what `val_dataloader` gives: "test" as the followed code, or "validation", a part of train.
        validation_fraction: of training, with `selection="validation"`.
        split_seed: draws that part.
        steps_per_epoch: see `TrainSampler`.
        batch_size: global, over all devices and accumulated micro-batches.
        seed: of the run; with the epoch it fixes the order of training samples.
        devices: number of processes that train together.
        accumulation: micro-batches per optimiser step.

    Raises:
        ReattendError: `batch_size` does not divide, files are missing or malformed, the two files do not belong
            together or are the same, they are not those of the archive, a test class does not occur in training, or
            training has one class only.
    """

    gives = ("num_channels", "max_length", "num_outputs")

    def __init__(
        self,
        dataset: str | None,
        archive: str,
        *,
        root: str | Path,
        batch_size: int,
        seed: int,
        standin: bool = False,
        selection: Literal["test", "validation"] = "test",
        validation_fraction: float = 0.0,
        split_seed: int = 0,
        steps_per_epoch: int | None = None,
        devices: int = 1,
        accumulation: int = 1,
    ) -> None:
        super().__init__(batch_size, seed, steps_per_epoch, devices, accumulation)

        files = stand_in(dataset) if standin else locate(dataset, archive, root)
        self.origin = files.origin
        self.checksum = files.checksum()
        held = (validation_fraction, split_seed) if selection == "validation" else None
        train, splits, self.class_names = _read_splits(files, held)
        self.kind = train.kind
        self.train, self.validation, self.test = splits["train"], splits.get("validation"), splits["test"]
        self.shape = {
            "num_channels": train.channels,
            "max_length": self.train.x.shape[1],
            "num_outputs": len(self.class_names) or 1,
        }


def _read_splits(files: SeriesFiles, held: tuple[float, int] | None) -> tuple[FileFacts, dict[str, Samples], list[str]]:
    """Facts of the training file, the splits standardised and padded by what "train" alone says, and the classes.

    One file after the other, so that of only one the values are in memory as they were read (float64).

    Args:
        files: of the set.
        held: fraction and seed of the part of the training file that is held out for validation, if any is.
    """
    file = read_ts(files.train)
    facts = FileFacts.of(file)
    names = class_names(file) if file.targets is None else []
    series, y = interpolate_missing(file), _answers(file, names)
    indices = {"train": np.arange(len(series))}
    if held is not None:
        indices["train"], indices["validation"] = hold_out(None if file.labels is None else y.numpy(), len(y), *held)
    standardise = Standardiser.fit([series[i] for i in indices["train"]])
    max_length = max(series[i].shape[1] for i in indices["train"])
    padded = {}
    answers = {name: y[chosen] for name, chosen in indices.items()}
    for name, chosen in indices.items():
        padded[name] = pad([series[i] for i in chosen], max_length, standardise)
    del file, series

    file = read_ts(files.test)
    test = FileFacts.of(file)
    check_pair(facts, test)
    if files.origin != "stand-in":
        check_known(files.dataset, facts, test)
    answers["test"] = _answers(file, names)
    padded["test"] = pad(interpolate_missing(file), max_length, standardise)
    full = all(mask.all() for _, mask in padded.values())
    splits = {
        name: Samples(torch.from_numpy(x), None if full else torch.from_numpy(mask), answers[name])
        for name, (x, mask) in padded.items()
    }
    return facts, splits, names


def _answers(file: TimeSeriesFile, names: list[str]) -> Tensor:
    if file.targets is not None:
        return torch.from_numpy(file.targets).float()
    return torch.from_numpy(class_codes(file, names))
