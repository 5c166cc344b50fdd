"""Data module for classification and regression of whole time series."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from reattend.data.archive import locate
from reattend.data.preparation import Standardiser, class_codes, class_names, hold_out, interpolate_missing, pad
from reattend.data.samplers import EvalSampler, MicroBatch, TrainSampler, rows_per_micro_batch
from reattend.data.standin import stand_in
from reattend.data.ts_format import Series, TimeSeriesFile, read_ts
from reattend.errors import ReattendError

Batch = dict[str, Any]


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


class TimeSeriesData(pl.LightningDataModule):
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
        origin: "folder", "sktime" or "stand-in".
        sizes: cases of each split.

    Args:
        dataset: name of the set, as in `<dataset>_TRAIN.ts`.
        archive: "uea", "ucr" or "tser".
        root: folder to look in first, see `reattend.data.archive.locate`.
        standin: use the generated stand-in instead.
        selection: what `val_dataloader` gives: "test" as the followed code, or "validation", a part of train.
        validation_fraction: of training, with `selection="validation"`.
        split_seed: draws that part.
        batch_size: global, over all devices and accumulated micro-batches.
        seed: of the run; with the epoch it fixes the order of training samples.
        devices: number of processes that train together.
        accumulation: micro-batches per optimiser step.

    Raises:
        ReattendError: `batch_size` does not divide, files are missing or malformed, the two files do not belong
            together, a channel has no values, a test class does not occur in training, or training has one class only.
    """

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
        devices: int = 1,
        accumulation: int = 1,
    ) -> None:
        super().__init__()
        rows_per_micro_batch(batch_size, devices, accumulation)
        self.batch_size = batch_size
        self.seed = seed
        self.devices = devices
        self.accumulation = accumulation

        files = stand_in(dataset) if standin else locate(dataset, archive, root)
        self.origin = files.origin
        self.checksum = files.checksum()
        train, test = read_ts(files.train), read_ts(files.test)
        _check_pair(train, test)
        self.kind = "regression" if train.labels is None else "classification"
        self.class_names = class_names(train) if self.kind == "classification" else []
        parts = {
            "train": (interpolate_missing(train), _answers(train, self.class_names)),
            "test": (interpolate_missing(test), _answers(test, self.class_names)),
        }
        if selection == "validation":
            series, y = parts["train"]
            codes = y.numpy() if self.kind == "classification" else None
            kept, held = hold_out(codes, len(series), validation_fraction, split_seed)
            for name, indices in (("train", kept), ("validation", held)):
                parts[name] = ([series[i] for i in indices], y[indices])
        splits = _prepare(parts)
        self.train, self.validation, self.test = splits["train"], splits.get("validation"), splits["test"]
        self.sizes = {name: len(split) for name, split in splits.items()}
        self.shape = {
            "num_channels": train.num_channels,
            "max_length": self.train.x.shape[1],
            "num_outputs": len(self.class_names) or 1,
        }

    def train_dataloader(self) -> DataLoader[Batch]:
        """Micro-batches of this process, from a `TrainSampler` (the loader's `sampler`)."""
        rank, world_size = self._rank_and_world_size()
        sampler = TrainSampler(
            len(self.train),
            self.batch_size,
            self.seed,
            rank=rank,
            world_size=world_size,
            accumulation=self.accumulation,
        )
        return _loader(self.train, sampler)

    def val_dataloader(self) -> DataLoader[Batch]:
        """What the best epoch is selected on: the held-out part of train, or test."""
        return self._eval_loader(self.test if self.validation is None else self.validation)

    def test_dataloader(self) -> DataLoader[Batch]:
        """The test file."""
        return self._eval_loader(self.test)

    def _eval_loader(self, samples: Samples) -> DataLoader[Batch]:
        rank, world_size = self._rank_and_world_size()
        rows = self.batch_size // self.accumulation
        return _loader(samples, EvalSampler(len(samples), rows, rank=rank, world_size=world_size))

    def _rank_and_world_size(self) -> tuple[int, int]:
        initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank, world_size = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if initialised else (0, 1)
        if world_size != self.devices:
            raise ReattendError(f"Data was set up for {self.devices} process(es), but {world_size} run(s).")
        return rank, world_size


def _check_pair(train: TimeSeriesFile, test: TimeSeriesFile) -> None:
    if (train.labels is None) != (test.labels is None):
        raise ReattendError(f"Of {train.path} and {test.path} one has class labels, the other regression targets.")
    if train.num_channels != test.num_channels:
        raise ReattendError(
            f"{train.path} has {train.num_channels} channel(s), {test.path} has {test.num_channels}: "
            "they do not belong to one set."
        )


def _answers(file: TimeSeriesFile, names: list[str]) -> Tensor:
    if file.targets is not None:
        return torch.from_numpy(file.targets).float()
    return torch.from_numpy(class_codes(file, names))


def _prepare(parts: dict[str, tuple[list[Series], Tensor]]) -> dict[str, Samples]:
    """Standardises and pads all splits by what "train" alone says."""
    standardise = Standardiser.fit(parts["train"][0])
    max_length = max(series.shape[1] for series in parts["train"][0])
    padded = {name: pad([standardise(case) for case in series], max_length) for name, (series, _) in parts.items()}
    full = all(mask.all() for _, mask in padded.values())
    return {
        name: Samples(torch.from_numpy(x), None if full else torch.from_numpy(mask), parts[name][1])
        for name, (x, mask) in padded.items()
    }


def _loader(samples: Samples, sampler: TrainSampler | EvalSampler) -> DataLoader[Batch]:
    # A generator of its own, because making an iterator draws a number: else from the stream that dropout uses.
    return DataLoader(
        samples,  # type: ignore[arg-type]
        sampler=sampler,
        batch_size=None,
        collate_fn=_as_it_is,
        generator=torch.Generator(),
    )


def _as_it_is(batch: Any) -> Any:
    return batch
