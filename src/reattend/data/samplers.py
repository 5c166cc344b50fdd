"""Which samples each process sees, and when: reproducible whatever the number of devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from reattend.errors import ReattendError
from reattend.seeding import derive


class MicroBatch(NamedTuple):
    """Samples that go through the model at once on one process.

    Attributes:
        indices: which samples, (B,).
        weight: 1 for a sample, 0 for a filler copy that only keeps all processes in step, (B,) float32.
        global_size: samples of the global batch that this is a part of, fillers not counted.
        epoch: of training; 0 in evaluation.
        start: place of the first sample in the epoch: (seed, epoch, start + i) names what is drawn for row i.
    """

    indices: Tensor
    weight: Tensor
    global_size: int
    epoch: int = 0
    start: int = 0


def rows_per_micro_batch(batch_size: int, devices: int, accumulation: int) -> int:
    """Samples per device and micro-batch: batch_size / (devices * accumulation).

    Raises:
        ReattendError: that is not a whole number.
    """
    parts = devices * accumulation
    rows, rest = divmod(batch_size, parts)
    if rows < 1 or rest:
        valid = " or ".join(f"recipe.batch_size={size}" for size in (rows * parts, (rows + 1) * parts) if size > 0)
        raise ReattendError(
            f"A global batch of {batch_size} does not divide over {devices} device(s) x {accumulation} accumulated "
            f"micro-batch(es) = {parts} parts. Nearest valid: {valid}."
        )
    return rows


def spread(indices: Tensor, parts: int, epoch: int = 0, place: int = 0) -> list[MicroBatch]:
    """Cuts a global batch into `parts` micro-batches with the same number of rows, in order.

    `place` is where in the `epoch` the batch begins.

    Where the samples do not suffice, a part is filled up with copies of the batch's first samples, at weight 0; with
    fewer samples than parts some parts consist of a filler alone.
    """
    size = len(indices)
    base, longer = divmod(size, parts)
    rows = -(-size // parts)
    micro_batches = []
    start = 0
    for part in range(parts):
        real = base + (part < longer)
        weight = torch.zeros(rows)
        weight[:real] = 1.0
        chunk = torch.cat([indices[start : start + real], indices[: rows - real]])
        micro_batches.append(MicroBatch(chunk, weight, size, epoch, place + start))
        start += real
    return micro_batches


class TrainSampler:
    """Micro-batches of one process for one epoch of training.

    The order of an epoch is a permutation drawn from (seed, epoch) alone. It is cut into global batches of
    `batch_size`, each of those into `world_size` x `accumulation` micro-batches (the last global batch may be partial:
    see `spread`), of which this process takes its `accumulation` consecutive ones. So the samples behind an optimiser
    step do not depend on devices, accumulation or on where a run was interrupted.

    Nothing is dropped, or with `last_batch="dropped"` the last global batch where it is partial.

    With `steps_per_epoch` an epoch is that many global batches out of an endless row of permutations, of which the
    next begins in the batch in which one ends: no batch is partial. With `repeats` each sample of the permutation
    comes that often in a row, and as many samples as before make an epoch (repeated augmentation, Hoffer et al. 2020).

    Attributes:
        epoch: which permutation; Lightning sets it through `set_epoch`.
        start: micro-batches to leave out of the next pass, once, when an interrupted epoch continues.

    Raises:
        ReattendError: `batch_size` does not divide.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        *,
        steps_per_epoch: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        accumulation: int = 1,
        repeats: int = 1,
        last_batch: Literal["dropped", "kept"] = "kept",
    ) -> None:
        rows_per_micro_batch(batch_size, world_size, accumulation)
        self.size = size
        self.repeats = repeats
        whole = size // batch_size if last_batch == "dropped" else -(-size // batch_size)
        self.batches = steps_per_epoch or whole
        self.steps_per_epoch = steps_per_epoch
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.accumulation = accumulation
        self.epoch = 0
        self.start = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the permutation of the next pass."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Micro-batches of a whole epoch, whatever `start`."""
        return self.batches * self.accumulation

    def __iter__(self) -> Iterator[MicroBatch]:
        # A generator, because Lightning makes the iterator before it calls set_epoch: both are read at the first batch.
        start, self.start = self.start, 0
        first, inside = divmod(start, self.accumulation)
        for number, batch in enumerate(self._batches(first), first):
            micro_batches = spread(batch, self.world_size * self.accumulation, self.epoch, number * self.batch_size)
            own = micro_batches[self.rank * self.accumulation : (self.rank + 1) * self.accumulation]
            yield from own[inside:]
            inside = 0

    def _batches(self, first: int) -> Iterator[Tensor]:
        """Global batches of the epoch from its `first` on."""
        if self.steps_per_epoch is None:
            yield from self._permutation(self.epoch).split(self.batch_size)[first : self.batches]
            return
        begin = (self.epoch * self.steps_per_epoch + first) * self.batch_size
        number, place = divmod(begin, self.size)
        order = self._permutation(number)[place:]
        for _ in range(first, self.steps_per_epoch):
            while len(order) < self.batch_size:
                number += 1
                order = torch.cat([order, self._permutation(number)])
            yield order[: self.batch_size]
            order = order[self.batch_size :]

    def _permutation(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive(self.seed, "data", number))
        permutation = torch.randperm(self.size, generator=generator)
        return permutation if self.repeats == 1 else permutation.repeat_interleave(self.repeats)[: self.size]


class EvalSampler:
    """Batches of one process for an evaluation: every sample once over all processes, in file order.

    Each global batch of `batch_size` is cut into `world_size` equal parts, filled up where it does not divide.
    """

    def __init__(self, size: int, batch_size: int, *, rank: int = 0, world_size: int = 1) -> None:
        rows_per_micro_batch(batch_size, world_size, 1)
        batches = torch.arange(size).split(batch_size)
        self.batches = [spread(batch, world_size)[rank] for batch in batches]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[MicroBatch]:
        return iter(self.batches)
