"""Every sample once, in the same order, whatever the devices, the accumulation and the interruptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reattend.config import compose, read
from reattend.data.samplers import EvalSampler, MicroBatch, TrainSampler, rows_per_micro_batch
from reattend.errors import ReattendError

SIZES = st.integers(1, 70)
WORLDS = st.sampled_from([1, 2, 3, 4])
RECIPE = read(compose()).recipe
ACCUMULATIONS = st.sampled_from([1, 2, 3])


def epoch(sampler: TrainSampler, number: int) -> list[MicroBatch]:
    sampler.set_epoch(number)
    return list(sampler)


def real(batch: MicroBatch) -> list[int]:
    return batch.indices[batch.weight > 0].tolist()


def global_batches(size: int, batch_size: int, world: int, accumulation: int, number: int) -> list[list[int]]:
    """The samples of each optimiser step, ranks after one another."""
    ranks = [
        epoch(TrainSampler(size, batch_size, 5, rank=rank, world_size=world, accumulation=accumulation), number)
        for rank in range(world)
    ]
    return [
        [index for batches in ranks for batch in batches[step : step + accumulation] for index in real(batch)]
        for step in range(0, len(ranks[0]), accumulation)
    ]


@settings(max_examples=60, deadline=None)
@given(SIZES, WORLDS, ACCUMULATIONS, st.integers(1, 4), st.integers(0, 9))
def test_a_step_sees_the_same_samples_whatever_the_devices(
    size: int, world: int, accumulation: int, rows: int, number: int
) -> None:
    batch_size = rows * world * accumulation
    spread = global_batches(size, batch_size, world, accumulation, number)
    assert spread == global_batches(size, batch_size, 1, 1, number)
    assert sorted(index for batch in spread for index in batch) == list(range(size))
    assert all(len(batch) == batch_size for batch in spread[:-1])


@settings(max_examples=60, deadline=None)
@given(SIZES, WORLDS, ACCUMULATIONS, st.integers(1, 4), st.sampled_from([1, 3]))
def test_a_dropped_batch_is_the_last_one_if_it_is_partial(
    size: int, world: int, accumulation: int, rows: int, repeats: int
) -> None:
    batch_size = rows * world * accumulation
    options: dict[str, Any] = {"world_size": world, "accumulation": accumulation, "repeats": repeats}
    kept = TrainSampler(size, batch_size, 5, rank=world - 1, **options)
    dropped = TrainSampler(size, batch_size, 5, rank=world - 1, **options, last_batch="dropped")
    whole = size // batch_size * accumulation
    assert len(dropped) == whole
    for mine, other in zip(epoch(dropped, 2), epoch(kept, 2)[:whole], strict=True):
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(mine, other, strict=True))
    for last in ("kept", "dropped"):
        sampler = TrainSampler(size, batch_size, 5, last_batch=last)
        recipe = replace(RECIPE, batch_size=batch_size, epochs=1, last_train_batch=last)
        assert len(sampler) == recipe.steps(size)
        assert sum(len(batch.indices) for batch in epoch(sampler, 0)) == recipe.samples(size)


@settings(max_examples=60, deadline=None)
@given(SIZES, WORLDS, ACCUMULATIONS, st.integers(1, 4))
def test_all_processes_stay_in_step(size: int, world: int, accumulation: int, rows: int) -> None:
    batch_size = rows * world * accumulation
    samplers = [
        TrainSampler(size, batch_size, 0, rank=rank, world_size=world, accumulation=accumulation)
        for rank in range(world)
    ]
    ranks = [epoch(sampler, 0) for sampler in samplers]
    assert {len(batches) for batches in ranks} == {len(samplers[0])}
    for step in range(len(samplers[0]) // accumulation):
        parts = [batches[step * accumulation + micro] for batches in ranks for micro in range(accumulation)]
        assert len({len(part.indices) for part in parts}) == 1
        assert len(parts[0].indices) >= 1
        assert {part.global_size for part in parts} == {sum(len(real(part)) for part in parts)}
        members = {index for part in parts for index in real(part)}
        assert all(index in members for part in parts for index in part.indices.tolist())


def test_one_process_has_no_fillers() -> None:
    batches = epoch(TrainSampler(270, 64, 0), 0)
    assert [len(batch.indices) for batch in batches] == [64, 64, 64, 64, 14]
    assert all(bool((batch.weight == 1).all()) for batch in batches)
    assert [batch.global_size for batch in batches] == [64, 64, 64, 64, 14]


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, number: int) -> list[int]:
        torch.manual_seed(torch.seed())
        return [index for batch in epoch(TrainSampler(50, 8, seed), number) for index in real(batch)]

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, number)) for seed in range(3) for number in range(3)}) == 9


def test_leaves_the_global_random_stream_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    epoch(TrainSampler(50, 8, 0), 1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_continues_an_interrupted_epoch_once(accumulation: int) -> None:
    def tail(start: int) -> list[list[int]]:
        sampler = TrainSampler(45, 8, 3, accumulation=accumulation)
        # Lightning makes the iterator first and only then tells the epoch.
        iterator = iter(sampler)
        sampler.set_epoch(4)
        sampler.start = start
        length = len(sampler)
        batches = [batch.indices.tolist() for batch in iterator]
        assert len(sampler) == length
        assert len(list(sampler)) == length
        return batches

    whole = tail(0)
    for start in range(len(whole) + 1):
        assert tail(start) == whole[start:]


@settings(max_examples=60, deadline=None)
@given(SIZES, WORLDS, st.integers(1, 4))
def test_evaluation_sees_every_sample_once(size: int, world: int, rows: int) -> None:
    ranks = [list(EvalSampler(size, rows * world, rank=rank, world_size=world)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = [index for step in zip(*ranks, strict=True) for batch in step for index in real(batch)]
    assert seen == list(range(size))
    assert all(
        batch.global_size == sum(len(real(b)) for b in step) for step in zip(*ranks, strict=True) for batch in step
    )


@pytest.mark.parametrize(
    ("batch_size", "devices", "accumulation", "valid"),
    [(64, 3, 1, "63 or recipe.batch_size=66"), (10, 2, 2, "8 or recipe.batch_size=12"), (3, 4, 1, "4")],
)
def test_a_batch_that_does_not_divide(batch_size: int, devices: int, accumulation: int, valid: str) -> None:
    with pytest.raises(ReattendError) as raised:
        rows_per_micro_batch(batch_size, devices, accumulation)
    message = str(raised.value)
    assert f"A global batch of {batch_size} does not divide over {devices} device(s) x {accumulation}" in message
    assert message.endswith(f"Nearest valid: recipe.batch_size={valid}.")
    with pytest.raises(ReattendError):
        TrainSampler(100, batch_size, 0, world_size=devices, accumulation=accumulation)


def test_rows_per_micro_batch() -> None:
    assert rows_per_micro_batch(64, 2, 4) == 8


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 9), st.integers(1, 5), WORLDS, ACCUMULATIONS)
def test_epochs_of_steps_cut_an_endless_row_of_passes(
    size: int, steps: int, rows: int, world: int, accumulation: int
) -> None:
    batch_size = rows * world * accumulation
    epochs = 4
    row = []
    for number in range(epochs):
        ranks = []
        for rank in range(world):
            sampler = TrainSampler(
                size, batch_size, 3, steps_per_epoch=steps, rank=rank, world_size=world, accumulation=accumulation
            )
            assert len(sampler) == steps * accumulation
            ranks.append(epoch(sampler, number))
        for step in range(steps):
            own = [batches[step * accumulation : (step + 1) * accumulation] for batches in ranks]
            row += [index for batches in own for batch in batches for index in real(batch)]
    assert len(row) == epochs * steps * batch_size
    passes = [row[start : start + size] for start in range(0, len(row), size)]
    assert all(sorted(one) == list(range(size)) for one in passes[:-1])
    assert len(set(passes[-1])) == len(passes[-1])
    assert size < 9 or len(passes) < 3 or passes[0] != passes[1]


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(1, 9), st.integers(1, 5), ACCUMULATIONS, st.integers(0, 3), st.data())
def test_an_interrupted_epoch_of_steps_goes_on(
    size: int, steps: int, rows: int, accumulation: int, number: int, data: st.DataObject
) -> None:
    sampler = TrainSampler(size, rows * accumulation, 3, steps_per_epoch=steps, accumulation=accumulation)
    whole = epoch(sampler, number)
    sampler.start = data.draw(st.integers(0, len(whole)))
    rest = whole[sampler.start :]
    assert [real(batch) for batch in epoch(sampler, number)] == [real(batch) for batch in rest]
