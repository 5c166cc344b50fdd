"""Data modules that feed whole micro-batches chosen by the project's own samplers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from reattend.data.samplers import EvalSampler, MicroBatch, TrainSampler, rows_per_micro_batch
from reattend.errors import ReattendError

Batch = dict[str, Any]


class Samples(Protocol):
    """A split, indexed by whole micro-batches."""

    def __len__(self) -> int: ...

    def __getitem__(self, batch: MicroBatch) -> Batch:
        """`x`, `padding_mask`, `y`, `weight` and `global_size` of the batch."""


class SampledData(pl.LightningDataModule):
    """Loaders over splits for one of several processes.

    The trainer has to leave the samplers as they are (`use_distributed_sampler=False`).

    Attributes:
        train, validation, test: the splits; `validation` is None where nothing is held out.
        kind: of the task that learns from it: "classification" or "regression".
        checksum: SHA-256 of all that changes the numbers.
        origin: where the samples are from.
        shape: what a backbone is built from.
        gives: names that `shape` has whatever the data.
        repeats: see `TrainSampler`.
        last_train_batch: whether the last batch of an epoch is dropped where it is incomplete.

    Args:
        batch_size: global, over all devices and accumulated micro-batches.
        seed: of the run; with the epoch it fixes the order of training samples.
        steps_per_epoch: see `TrainSampler`.
        devices: number of processes that train together.
        accumulation: micro-batches per optimiser step.

    Raises:
        ReattendError: `batch_size` does not divide.
    """

    kind: str
    checksum: str
    origin: str
    shape: dict[str, int]
    gives: ClassVar[tuple[str, ...]]
    repeats: int = 1
    last_train_batch: Literal["dropped", "kept"] = "kept"
    train: Samples
    validation: Samples | None
    test: Samples

    def __init__(
        self, batch_size: int, seed: int, steps_per_epoch: int | None, devices: int, accumulation: int
    ) -> None:
        super().__init__()
        rows_per_micro_batch(batch_size, devices, accumulation)
        self.batch_size = batch_size
        self.seed = seed
        self.steps_per_epoch = steps_per_epoch
        self.devices = devices
        self.accumulation = accumulation

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of each split that there is."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: len(samples) for split, samples in splits.items() if samples is not None}

    def train_dataloader(self) -> DataLoader[Batch]:
        """Micro-batches of this process, from a `TrainSampler` (the loader's `sampler`)."""
        return self.train_loader(self.train)

    def val_dataloader(self) -> DataLoader[Batch]:
        """What the best epoch is selected on: validation, or test where nothing is held out."""
        return self.test_dataloader() if self.validation is None else self.eval_loader(self.validation)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Test."""
        return self.eval_loader(self.test)

    def train_loader(self, samples: Samples) -> DataLoader[Batch]:
        """Micro-batches of this process, from a `TrainSampler` (the loader's `sampler`)."""
        rank, world_size = self._rank_and_world_size()
        sampler = TrainSampler(
            len(samples),
            self.batch_size,
            self.seed,
            steps_per_epoch=self.steps_per_epoch,
            rank=rank,
            world_size=world_size,
            accumulation=self.accumulation,
            repeats=self.repeats,
            last_batch=self.last_train_batch,
        )
        return self.loader(samples, sampler)

    def eval_loader(self, samples: Samples) -> DataLoader[Batch]:
        """Every sample once over all processes, in order, from an `EvalSampler`."""
        rank, world_size = self._rank_and_world_size()
        rows = self.batch_size // self.accumulation
        return self.loader(samples, EvalSampler(len(samples), rows, rank=rank, world_size=world_size))

    def loader(self, samples: Samples, sampler: TrainSampler | EvalSampler) -> DataLoader[Batch]:
        """Loads what the sampler says, in this process."""
        # A generator of its own, as making an iterator draws a number: else from the stream that dropout uses.
        return DataLoader(
            samples,  # type: ignore[arg-type]
            sampler=sampler,
            batch_size=None,
            collate_fn=as_it_is,
            generator=torch.Generator(),
        )

    def further_tests(self) -> dict[str, Samples]:
        """Test in other forms than the one that is trained for, such as "test_384" for another size of images."""
        return {}

    def _rank_and_world_size(self) -> tuple[int, int]:
        initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank, world_size = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if initialised else (0, 1)
        if world_size != self.devices:
            raise ReattendError(f"Data was set up for {self.devices} process(es), but {world_size} run(s).")
        return rank, world_size


def as_it_is(batch: Any) -> Any:
    """A batch that the samples have collated already."""
    return batch
