"""A loader whose processes decode images, beginning no sooner than the first batch is asked for."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from reattend.data.images.samples import UNREADABLE
from reattend.data.sampled import Batch, Samples, as_it_is
from reattend.data.samplers import EvalSampler, MicroBatch, TrainSampler
from reattend.errors import ReattendError

_MOST = 8
_GRACE = 20  # seconds


class ImageLoader(DataLoader[Batch]):
    """Micro-batches in the sampler's order, whatever number of worker processes makes them.

    Lightning makes the iterator before it tells the sampler where to begin, and workers would then be ahead of it; so
    they are given their first batches when the first one is wanted. An error of ours that a worker meets is raised as
    it is. Files that are no images are named on stderr, each once.

    Args:
        samples: what is loaded.
        sampler: which micro-batches.
        workers: processes; with 0 this one does it.
        pinned: whether batches are put where a GPU copies them from at once.
        unreadable: name and reason of each file that was no image; it grows.
    """

    def __init__(
        self,
        samples: Samples,
        sampler: TrainSampler | EvalSampler,
        *,
        workers: int,
        pinned: bool,
        unreadable: dict[str, str],
    ) -> None:
        super().__init__(
            _Answers(samples),  # type: ignore[arg-type]
            sampler=sampler,
            batch_size=None,
            collate_fn=as_it_is,
            # Of its own, as making an iterator draws a number: else from the stream that dropout uses.
            generator=torch.Generator(),
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=pinned,
            worker_init_fn=_leave_signals_to_the_parent,
        )
        self.unreadable = unreadable

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        answer: Any
        for answer in super().__iter__():
            if isinstance(answer, ReattendError):
                # Ends the workers now: once only the error's traceback knows them, each is waited for in vain.
                self._iterator = None
                raise answer
            self._tell(answer.pop(UNREADABLE, {}))
            yield answer

    def _tell(self, found: dict[str, str]) -> None:
        for name, reason in found.items():
            if name not in self.unreadable:
                self.unreadable[name] = reason
                print(
                    f"warning: {name} is no whole image and is left out ({reason}); {len(self.unreadable)} so far",
                    file=sys.stderr,
                    flush=True,
                )


class _Answers:
    """Samples whose errors are answers too: as an exception a worker's would come with its traceback as message."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, batch: MicroBatch) -> Batch | ReattendError:
        try:
            return self.samples[batch]
        except ReattendError as error:
            return error


def usual_workers(devices: int) -> int:
    """One process for each core that this process may use, but for one, at most 8, shared among the devices."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(_MOST, cores // devices - 1))


def _leave_signals_to_the_parent(worker: int) -> None:
    """Ctrl-C and a cluster's SIGTERM reach all processes, and the parent still wants batches to end its step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Ends the worker later, if the parent does not.
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE))
