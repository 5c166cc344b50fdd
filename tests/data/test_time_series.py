"""The data module: what a model and a trainer get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from reattend.data import TimeSeriesData
from reattend.data.samplers import TrainSampler
from reattend.errors import ReattendError

from .conftest import WriteSet

TRAIN = ["1,2,3,4:a", "2,4:b", "0,?,2:c", "5,5,5:a"]


def toy(root: Path, **options: Any) -> TimeSeriesData:
    return TimeSeriesData("Toy", "uea", **{"root": root, "batch_size": 2, "seed": 0, **options})


def test_japanese_vowels() -> None:
    data = TimeSeriesData("JapaneseVowels", "uea", root="absent", batch_size=64, seed=0)
    assert data.shape == {"num_channels": 12, "max_length": 26, "num_outputs": 9}
    assert data.sizes == {"train": 270, "test": 370}
    assert data.class_names == [str(number) for number in range(1, 10)]
    assert (data.kind, data.origin) == ("classification", "sktime")
    assert data.train.padding_mask is not None
    assert int(data.train.padding_mask.sum()) == 4274
    real = data.train.x[data.train.padding_mask].double()
    torch.testing.assert_close(real.mean(dim=0), torch.zeros(12).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(real.std(dim=0), torch.ones(12).double(), atol=1e-6, rtol=0)
    assert not data.train.x[~data.train.padding_mask].any()
    assert bool(data.test.padding_mask.any(dim=1).all())
    batch = next(iter(data.train_dataloader()))
    assert batch["x"].shape == (64, 26, 12)
    assert batch["x"].dtype == torch.float32
    assert batch["padding_mask"].dtype == torch.bool
    assert batch["y"].dtype == torch.int64
    assert batch["weight"].tolist() == [1.0] * 64
    assert batch["global_size"] == 64


def test_statistics_come_from_train_alone(write_set: WriteSet) -> None:
    first = toy(write_set(TRAIN, ["1,2:a"]))
    second = toy(write_set(TRAIN, ["1e6,-1e6:a", "7,?:b"]))
    assert torch.equal(first.train.x, second.train.x)
    steps = torch.tensor([1, 2, 3, 4, 2, 4, 0, 1, 2, 5, 5, 5]).double()
    expected = (torch.tensor([1e6, -1e6]).double() - steps.mean()) / steps.std()
    torch.testing.assert_close(second.test.x[0, :2, 0], expected.float())
    assert first.checksum != second.checksum


def test_longer_test_series_are_clipped_and_shorter_ones_padded(write_set: WriteSet) -> None:
    data = toy(write_set(TRAIN, ["1,2,3,4,5,6:a", "1:b"]))
    assert data.shape["max_length"] == 4
    assert torch.equal(data.test.x[0], data.train.x[0])
    assert data.test.padding_mask.tolist() == [[True] * 4, [True, False, False, False]]


def test_no_mask_where_every_series_is_full(write_set: WriteSet) -> None:
    full = ["1,2:a", "2,3:b"]
    assert toy(write_set(full, ["1,2,3:a"])).train.padding_mask is None
    data = toy(write_set(full, ["1:a"]))
    assert bool(data.train.padding_mask.all())
    assert next(iter(toy(write_set(full, full[::-1])).test_dataloader()))["padding_mask"] is None


def test_regression() -> None:
    data = TimeSeriesData("Tecator", "tser", root="absent", batch_size=8, seed=0, standin=True)
    assert (data.kind, data.class_names, data.shape["num_outputs"]) == ("regression", [], 1)
    assert data.train.y.dtype == torch.float32
    assert data.origin == "stand-in"
    strict = TimeSeriesData(
        "Tecator", "tser", root="absent", batch_size=8, seed=0, standin=True, selection="validation",
        validation_fraction=0.2,
    )  # fmt: skip
    assert strict.sizes == {"train": 32, "validation": 8, "test": 20}


def strict(root: Path, **options: Any) -> TimeSeriesData:
    return toy(root, selection="validation", validation_fraction=0.2, **options)


def test_strict_split_depends_on_its_own_seed_alone(write_set: WriteSet) -> None:
    lines = [f"{case},{case * case}:{'ab'[case % 2]}" for case in range(20)]
    root = write_set(lines, ["1,2:a"])
    base = strict(root)
    assert base.sizes == {"train": 16, "validation": 4, "test": 1}
    assert base.validation.y.bincount().tolist() == [2, 2]
    assert torch.equal(base.validation.x, strict(root, seed=7).validation.x)
    assert not torch.equal(base.validation.x, strict(root, split_seed=1).validation.x)
    validation = torch.cat([batch["x"] for batch in base.val_dataloader()])
    assert torch.equal(validation, base.validation.x)


def test_strict_takes_statistics_and_length_from_what_is_left(write_set: WriteSet) -> None:
    # Class b's only long series with huge values is in one of the five: whichever is held out must not count.
    lines = ["0,1:a"] * 5 + ["0,1:b", "0,1:b", "0,1:b", "0,1:b", "0,9,9:b"]
    root = write_set(lines, ["0,1:a"])
    held_out = {seed: strict(root, split_seed=seed) for seed in range(12)}
    lengths = {seed: data.shape["max_length"] for seed, data in held_out.items()}
    assert set(lengths.values()) == {2, 3}
    for seed, data in held_out.items():
        real = data.train.x if data.train.padding_mask is None else data.train.x[data.train.padding_mask]
        torch.testing.assert_close(real.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
        if lengths[seed] == 2:
            torch.testing.assert_close(data.validation.x[1, 1, 0] / data.train.x[0, 1, 0], torch.tensor(17.0))


def test_a_class_with_one_member_stays_in_train(write_set: WriteSet) -> None:
    root = write_set(["1,2:a"] * 10 + ["2,3:b"] * 10 + ["4,5:c"], ["1,2:c"])
    for seed in range(5):
        assert 2 in strict(root, split_seed=seed).train.y


def test_published_evaluates_on_test(write_set: WriteSet) -> None:
    data = toy(write_set(TRAIN, ["1,2:c", "3:a", "1:b"]))
    assert data.validation is None
    assert [batch["y"].tolist() for batch in data.val_dataloader()] == [[2, 0], [1]]
    assert [batch["y"].tolist() for batch in data.test_dataloader()] == [[2, 0], [1]]


def test_training_order_follows_the_sampler_and_spares_the_global_stream(write_set: WriteSet) -> None:
    data = toy(write_set([f"{case},1:{'ab'[case % 2]}" for case in range(9)], ["1,2:a"]))
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    loader = data.train_dataloader()
    batches = list(loader)
    assert torch.equal(torch.rand(2), expected)
    assert isinstance(loader.sampler, TrainSampler)
    assert len(loader) == len(batches) == 5
    sampler = TrainSampler(9, 2, 0)
    for batch, indices in zip(batches, sampler, strict=True):
        assert torch.equal(batch["x"], data.train.x[indices.indices])
    loader.sampler.set_epoch(1)
    assert not torch.equal(next(iter(loader))["x"], batches[0]["x"])


def test_accumulation_makes_smaller_batches(write_set: WriteSet) -> None:
    data = toy(write_set(TRAIN, ["1,2:c", "3:a", "1:b"]), batch_size=4, accumulation=2)
    assert [len(batch["y"]) for batch in data.train_dataloader()] == [2, 2]
    assert [batch["global_size"] for batch in data.train_dataloader()] == [4, 4]
    assert [len(batch["y"]) for batch in data.test_dataloader()] == [2, 1]


def test_devices_must_be_running(write_set: WriteSet) -> None:
    data = toy(write_set(TRAIN, ["1:a"]), devices=2)
    with pytest.raises(ReattendError, match=r"set up for 2 process\(es\), but 1 run"):
        data.train_dataloader()


def test_each_process_gets_its_share(write_set: WriteSet, monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy(write_set(TRAIN, ["1,2:c", "3:a", "1:b"]), batch_size=2, devices=2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    train, test = [], []
    for rank in range(2):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        train += [float(batch["x"][0, 0, 0]) for batch in data.train_dataloader()]
        test.append([(batch["y"].tolist(), batch["weight"].tolist()) for batch in data.test_dataloader()])
    assert sorted(train) == sorted(data.train.x[:, 0, 0].tolist())
    assert test == [[([2], [1.0]), ([1], [1.0])], [([0], [1.0]), ([1], [0.0])]]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            TRAIN,
            ["1,2:a", "1,2:d"],
            "Toy_TEST.ts, line 7: class 'd' does not occur in the training file, which has a, b",
        ),
        (["1,2:a", "3:a"], ["1,2:a"], "Toy_TRAIN.ts: all 2 cases are of class 'a'"),
        (TRAIN, ["1,x:a"], "Toy_TEST.ts, line 6: expected a finite number"),
    ],
)
def test_bad_data(write_set: WriteSet, train: list[str], test: list[str], message: str) -> None:
    with pytest.raises(ReattendError) as raised:
        toy(write_set(train, test, classes="a b c d"))
    assert message in str(raised.value)


def test_files_that_do_not_belong_together(write_set: WriteSet) -> None:
    root = write_set(TRAIN, ["1,2:a"])
    path = root / "Toy" / "Toy_TEST.ts"
    text = path.read_text()
    path.write_text(text.replace("@univariate true", "@dimensions 2").replace("1,2:a", "1,2:3,4:a"))
    with pytest.raises(ReattendError, match=r"has 1 channel\(s\), .* has 2"):
        toy(root)
    path.write_text("@targetLabel true\n@data\n1,2:0.5\n")
    with pytest.raises(ReattendError, match="one has class labels, the other regression targets"):
        toy(root)


def test_a_batch_that_does_not_divide_is_found_before_reading(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match="A global batch of 3 does not divide"):
        toy(tmp_path / "absent", batch_size=3, devices=2)
