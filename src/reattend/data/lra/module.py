"""Data module of the Long Range Arena tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from reattend.config.limits import Count
from reattend.config.problems import refuse
from reattend.data.lra.by_rule import Brackets, ContourLength, Lengths, Pictures, Resolution
from reattend.data.lra.options import BlackPixels, LastTestBatch, PadTo, TextBytes
from reattend.data.lra.sets import next_command, raw_set
from reattend.data.lra.standin import write_stand_in
from reattend.data.preparation import hold_out
from reattend.data.prepared.arrays import Prepared, Sequences
from reattend.data.prepared.preparing import opened, stand_in
from reattend.data.sampled import Batch, SampledData
from reattend.data.samplers import MicroBatch

_ROUND = 128  # lengths of short batches are multiples of it


@dataclass(frozen=True)
class Samples:
    """A split on disk, indexed by whole micro-batches.

    Attributes:
        documents: one, or the two of a pair.
        labels: classes of all samples in the file (n,).
        indices: places in the file of the split's samples.
        max_length: tokens N that samples are padded to.
        cut: tokens of a document that are used, at most N.
        masked: whether there is a mask: not where every sample of every split has N real tokens.
        zero_is_padding: whether tokens of id 0 are masked.
        short: whether a batch is padded only to its longest sample, rounded up to a multiple of 128.
    """

    documents: Sequence[Sequences]
    labels: NDArray[np.int64]
    indices: NDArray[np.int64]
    max_length: int
    cut: int
    masked: bool
    zero_is_padding: bool
    short: bool

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, batch: MicroBatch) -> Batch:
        """`x`, `padding_mask`, `y`, `weight` and `global_size` of the batch."""
        rows = self.indices[batch.indices.numpy()]
        lengths = self.lengths(rows)
        width = self.max_length
        if self.short:
            width = min(width, -(-int(lengths.max()) // _ROUND) * _ROUND)
        x = np.zeros((len(rows), len(self.documents), width), dtype=np.int64)
        for number, (tokens, offsets) in enumerate(self.documents):
            # Row by row: a copy of neighbours is faster than gathering by an index for every token.
            for row, start, length in zip(x[:, number], offsets[rows], lengths[:, number], strict=True):
                row[:length] = tokens[start : start + length]
        mask = None
        if self.masked:
            mask = x != 0 if self.zero_is_padding else np.arange(width) < lengths[..., None]
        if len(self.documents) == 1:
            x, mask = x[:, 0], None if mask is None else mask[:, 0]
        return {
            "x": torch.from_numpy(x),
            "padding_mask": None if mask is None else torch.from_numpy(mask),
            "y": torch.from_numpy(self.labels[rows]),
            "weight": batch.weight,
            "global_size": batch.global_size,
        }

    def in_order(self) -> Samples:
        """The split for evaluation: where batches are padded to their longest sample, the shortest samples first."""
        if not self.short:
            return self
        longest = self.lengths(self.indices).max(axis=1)
        return replace(self, indices=self.indices[np.argsort(longest, kind="stable")])

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Used tokens of each document of samples in the file (n, documents)."""
        return np.stack([np.minimum(o[rows + 1] - o[rows], self.cut) for _, o in self.documents], axis=1)


class LRAData(SampledData):
    """Training, validation and test split of a Long Range Arena set, from its prepared arrays.

    `x` has token ids (B, N), for pairs (B, 2, N), int64, padded with 0; `padding_mask` is of the same shape, True at
    real tokens, or None where no sample of any split is padded. With `selection="validation"` the set's own development
    set selects; where it has none, a part of train is held out, stratified by class and drawn by `split_seed` alone.

    The trainer has to leave the samplers as they are (`use_distributed_sampler=False`).

    Attributes:
        train, validation, test: the splits; `validation` is None with `selection="test"`.
        shape: `vocabulary`, `num_documents`, `max_length` and `num_outputs`.
        kind: "classification".
        checksum: of the manifest.
        origin: "stand-in", or where the samples are from.
        sizes: samples of each split that is used.

    Args:
        dataset: "listops", "text", "retrieval", "image" or "pathfinder".
        root: folder of all data.
        max_length: tokens N that samples are cut to and padded to; of documents at most 4,096.
        text_bytes: bytes of each document that are used (text, retrieval), of 4,096 that are stored; all up to
            `max_length` by default.
        black_pixels: whether id 0, black, is masked as the followed code does, or is a pixel (image, pathfinder).
        last_test_batch: whether an incomplete last batch of test is left out, as the followed code does.
        pad_to: pad to `max_length`, or a batch to its longest sample; then evaluation goes by length.
        brackets, lengths: see `ListOpsSet`.
        images, contour_length, resolution: see `PathfinderSet`.
        standin: use the generated stand-in instead.
        selection: what `val_dataloader` gives.
        validation_fraction: of training, where it is held out.
        split_seed: draws that part.
        batch_size: global, over all devices and accumulated micro-batches.
        steps_per_epoch: see `TrainSampler`.
        seed: of the run; with the epoch it fixes the order of training samples.
        devices: number of processes that train together.
        accumulation: micro-batches per optimiser step.

    Raises:
        ReattendError: an option has no such value, `batch_size` does not divide, or data is missing, not prepared or
            damaged.
    """

    kind = "classification"
    gives = ("vocabulary", "num_documents", "max_length", "num_outputs")
    train: Samples
    validation: Samples | None
    test: Samples

    def __init__(
        self,
        dataset: str | None,
        *,
        root: str | Path,
        batch_size: int,
        seed: int,
        max_length: Count,
        brackets: Brackets | None = None,
        lengths: Lengths | None = None,
        images: Pictures | None = None,
        contour_length: ContourLength | None = None,
        resolution: Resolution | None = None,
        text_bytes: TextBytes | None = None,
        black_pixels: BlackPixels = "pixels",
        last_test_batch: LastTestBatch = "kept",
        pad_to: PadTo = "max_length",
        steps_per_epoch: int | None = None,
        standin: bool = False,
        selection: Literal["test", "validation"] = "test",
        validation_fraction: float = 0.0,
        split_seed: int = 0,
        devices: int = 1,
        accumulation: int = 1,
    ) -> None:
        super().__init__(batch_size, seed, steps_per_epoch, devices, accumulation)
        self.last_test_batch = last_test_batch
        raw = raw_set(
            dataset,
            root,
            standin=standin,
            brackets=brackets,
            lengths=lengths,
            images=images,
            contour_length=contour_length,
            resolution=resolution,
        )
        refuse(raw.length_problems(max_length), next_command(dataset))
        prepared = stand_in(raw, write_stand_in) if standin else opened(raw)
        self.checksum = prepared.checksum
        self.origin = "stand-in" if standin else "prepared"
        self.shape = raw.shape(max_length)
        places = {split: np.arange(size) for split, size in prepared.sizes.items()}
        read_from = {split: split for split in places}
        if selection == "test":
            places.pop("validation", None)
        elif "validation" not in places:
            labels = np.asarray(prepared.labels("train"))
            kept, held = hold_out(labels, len(labels), validation_fraction, split_seed)
            places |= {"train": kept, "validation": held}
            read_from["validation"] = "train"
        cut = min(max_length, text_bytes or max_length)
        zero_is_padding = black_pixels == "padding"
        masked = zero_is_padding or not all(_full(prepared, split, max_length, cut) for split in prepared.sizes)
        splits = {
            split: Samples(
                prepared.documents(read_from[split]),
                prepared.labels(read_from[split]),
                indices,
                max_length,
                cut,
                masked,
                zero_is_padding,
                pad_to == "batch",
            )
            for split, indices in places.items()
        }
        self.train, self.validation, self.test = splits["train"], splits.get("validation"), splits["test"]

    def val_dataloader(self) -> DataLoader[Batch]:
        """What the best epoch is selected on: the development set, the held-out part of train, or test."""
        return self.test_dataloader() if self.validation is None else self.eval_loader(self.validation.in_order())

    def test_dataloader(self) -> DataLoader[Batch]:
        """Test; without an incomplete last batch, if it is to be dropped and is not the only one."""
        incomplete = len(self.test) % self.batch_size if self.last_test_batch == "dropped" else 0
        kept = self.test.indices[: len(self.test) - incomplete]
        return self.eval_loader((replace(self.test, indices=kept) if len(kept) else self.test).in_order())


def _full(prepared: Prepared, split: str, max_length: int, cut: int) -> bool:
    return cut == max_length and all(bool((np.diff(o) >= cut).all()) for _, o in prepared.documents(split))
