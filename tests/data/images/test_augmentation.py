"""What is drawn in training: the same whoever loads it, as timm does it, and nobody else's numbers move."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from timm.data.mixup import Mixup
from torch import Tensor

from reattend.config.schema import AugmentationConfig
from reattend.data import ImageData
from reattend.data.images.mixing import Mixing
from reattend.data.images.randomness import seed_generators
from reattend.data.images.transforms import training_transform
from reattend.data.samplers import MicroBatch
from reattend.errors import ReattendError
from reattend.seeding import derive

from .trees import data, prepare, write_tree

DEIT = AugmentationConfig(
    crop_scale=(0.08, 1.0),
    flip=0.5,
    color_jitter=0.3,
    auto_augment="rand-m9-mstd0.5-inc1",
    random_erasing=0.25,
    repeats=3,
    mixup=0.8,
    cutmix=1.0,
    label_smoothing=0.1,
)
UNMIXED = replace(DEIT, mixup=0.0, cutmix=0.0, label_smoothing=0.0, repeats=1)


def imagenet(**options: Any) -> ImageData:
    return data("absent", "imagenet-1k", standin=True, **{"batch_size": 40, "image_size": 32, **options})


def epoch(module: ImageData, number: int = 0) -> list[Any]:
    loader = module.train_dataloader()
    loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
    return list(loader)


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in ("x", "y", "weight")
    )


@pytest.fixture
def unmoved() -> Iterator[None]:
    """Fails if a test moves one of the three global generators."""

    def states() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]

    before = states()
    yield
    assert states() == before


@pytest.mark.usefixtures("unmoved")
def test_workers_and_what_was_loaded_before_change_nothing() -> None:
    alone = epoch(imagenet(augmentation=DEIT), 1)
    assert alone[0]["x"].shape == (40, 3, 32, 32)
    assert same(epoch(imagenet(augmentation=DEIT, loader_workers=2), 1), alone)
    module = imagenet(augmentation=DEIT)
    assert not same(epoch(module, 0), alone)
    assert same(epoch(module, 1), alone)
    assert not same(epoch(imagenet(augmentation=DEIT, seed=1), 1), alone)


def test_accumulation_and_devices_change_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = epoch(imagenet(augmentation=UNMIXED))
    parts = epoch(imagenet(augmentation=UNMIXED, accumulation=4))
    assert [len(batch["x"]) for batch in parts] == [10] * 36
    assert torch.equal(torch.cat([b["x"] for b in parts]), torch.cat([b["x"] for b in whole]))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    second = epoch(imagenet(augmentation=UNMIXED, devices=2))
    assert torch.equal(torch.cat([b["x"] for b in second]), torch.cat([b["x"][20:] for b in whole]))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_epoch_goes_on_with_the_same_bits(workers: int) -> None:
    module = imagenet(augmentation=DEIT, loader_workers=workers)
    loader: Any = module.train_dataloader()
    loader.sampler.set_epoch(3)
    unbroken = list(loader)
    resumed: Any = imagenet(augmentation=DEIT, loader_workers=workers).train_dataloader()
    batches = iter(resumed)  # Lightning's order
    resumed.sampler.start = 4
    resumed.sampler.set_epoch(3)
    assert same(list(batches), unbroken[4:])
    resumed.sampler.set_epoch(4)
    loader.sampler.set_epoch(4)
    assert same(list(resumed), list(loader))


def test_light_augmentation_by_hand() -> None:
    plain = data("absent", "fashion_mnist", standin=True, image_size=28, batch_size=32)
    order = [batch["y"] for batch in epoch(plain)]
    assert all(y.dtype == torch.int64 for y in order)
    light = AugmentationConfig(flip=0.5, pad=2)
    changed = epoch(data("absent", "fashion_mnist", standin=True, image_size=28, batch_size=32, augmentation=light))
    black = (0 - 0.2860) / 0.3530
    shifts = set()
    for before, after in zip(epoch(plain), changed, strict=True):
        assert torch.equal(before["y"], after["y"])
        padded = torch.nn.functional.pad(before["x"], (2, 2, 2, 2), value=black)
        for image, own in zip(padded, after["x"], strict=True):
            found = [
                (top, left, flip)
                for top in range(5)
                for left in range(5)
                for flip in (False, True)
                if torch.allclose(_crop(image, top, left, flip), own, atol=1e-5)
            ]
            assert found
            shifts.add(found[0])
    assert len(shifts) == 50


def _crop(image: Tensor, top: int, left: int, flip: bool) -> Tensor:
    part = image[:, top : top + 28, left : left + 28]
    return part.flip(2) if flip else part


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 1.0), (0.8, 0.0), (0.0, 1.0), (0.3, 0.7)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixing_is_that_of_timm(mixup: float, cutmix: float, smoothing: float) -> None:
    augmentation = AugmentationConfig(mixup=mixup, cutmix=cutmix, label_smoothing=smoothing, mix_probability=0.8)
    ours = Mixing(augmentation, 5)
    timm = Mixup(mixup, cutmix, None, 0.8, 0.5, "batch", True, smoothing, 5)
    x, y = torch.randn(6, 3, 16, 12), torch.tensor([0, 1, 2, 3, 4, 0])
    for seed in range(12):
        seed_generators(seed)
        wanted = timm(x.clone(), y)
        seed_generators(seed)
        found = ours(x.clone(), y, torch.ones(6, dtype=torch.bool))
        assert torch.equal(found[0], wanted[0])
        assert torch.allclose(found[1], wanted[1], atol=1e-7)
        assert torch.allclose(found[1].sum(1), torch.ones(6))


def test_mixing_of_an_odd_batch_and_beside_an_image_that_is_none() -> None:
    ours = Mixing(AugmentationConfig(mixup=0.8), 5)
    x, y = torch.randn(5, 1, 4, 4), torch.arange(5)
    usable = torch.tensor([True, False, True, True, True])
    seed_generators(0)
    mixed, targets = ours(x.clone(), y, usable)
    share = float(targets[0, 0])
    assert 0 < share < 1
    assert torch.allclose(mixed[0], share * x[0] + (1 - share) * x[4])
    assert torch.allclose(targets[4], torch.tensor([1 - share, 0, 0, 0, share]))
    for row in (2, 3):  # its own partner, and that of the missing one
        assert torch.allclose(mixed[row], x[row], atol=1e-6)
        assert torch.allclose(targets[row], torch.eye(5)[row])


def test_a_whole_batch_draws_by_its_place() -> None:
    augmentation = AugmentationConfig(mixup=0.8, cutmix=1.0)
    module = imagenet(augmentation=augmentation)
    batch = next(iter(module.train_dataloader()))
    plain = next(iter(imagenet().train_dataloader()))
    seed_generators(derive(0, "mixup", 0, 0))
    x, y = Mixing(augmentation, 6)(plain["x"].clone(), plain["y"], torch.ones(40, dtype=torch.bool))
    assert torch.equal(batch["x"], x)
    assert torch.equal(batch["y"], y)


def test_label_smoothing_alone() -> None:
    batch = next(iter(imagenet(augmentation=AugmentationConfig(label_smoothing=0.1)).train_dataloader()))
    assert batch["y"].dtype == torch.float32
    assert torch.allclose(batch["y"].max(1).values, torch.tensor(0.9 + 0.1 / 6))
    assert torch.allclose(batch["y"].min(1).values, torch.tensor(0.1 / 6))
    plain = next(iter(imagenet().train_dataloader()))
    assert torch.equal(batch["y"].argmax(1), plain["y"])
    assert torch.equal(batch["x"], plain["x"])


def test_repeats_are_augmented_each_anew() -> None:
    batch = epoch(imagenet(augmentation=replace(UNMIXED, repeats=3), batch_size=30))[0]
    groups = batch["y"].view(10, 3)
    assert (groups == groups[:, :1]).all()
    images = batch["x"].view(10, 3, -1)
    assert (images[:, 0] != images[:, 1]).any(1).all()
    assert (images[:, 1] != images[:, 2]).any(1).all()
    plain = epoch(imagenet(augmentation=AugmentationConfig(repeats=3), batch_size=30))
    assert sum(len(batch["y"]) for batch in plain) == 360
    copies = plain[0]["x"].view(10, 3, -1)
    assert torch.equal(copies[:, 0], copies[:, 2])


@pytest.mark.parametrize("mean", [(0.5, 0.5, 0.5), (0.5,)])
def test_randaugment_at_its_strongest(mean: tuple[float, ...]) -> None:
    """Pillow 13 refuses to posterize to 0 bits, which timm asks for at magnitude 10; grey images take part too."""
    from PIL import Image

    strongest = AugmentationConfig(crop_scale=(0.5, 1.0), auto_augment="rand-m10-inc1")
    change = training_transform(strongest, 16, 1.0, "bicubic", mean)
    pixels = np.random.RandomState(0).randint(0, 256, (24, 24, 3)).astype(np.uint8)
    image = Image.fromarray(pixels if len(mean) == 3 else pixels[..., 0])
    for seed in range(150):
        seed_generators(seed)
        assert change(image).size == (16, 16)
    with pytest.raises(ReattendError, match=r"auto_augment=randy.*timm knows no such policy"):
        training_transform(replace(strongest, auto_augment="randy"), 16, 1.0, "bicubic", mean)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_is_no_image_counts_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    write_tree(tmp_path / "mine")
    for split in ("train", "val"):
        bad = tmp_path / "mine" / split / "n01" / "0.JPEG"
        bad.write_bytes(bad.read_bytes()[:-100])
    prepare(tmp_path)
    module = data(tmp_path, augmentation=AugmentationConfig(mixup=0.8), loader_workers=workers)
    for number in range(2):
        batches = epoch(module, number)
        assert torch.cat([batch["weight"] for batch in batches]).sum() == 17
        assert all(torch.isfinite(batch["x"]).all() for batch in batches)
    tested = list(module.test_dataloader())
    assert torch.cat([batch["weight"] for batch in tested]).tolist() == [0.0] + [1.0] * 11
    assert set(module.unreadable) == {"train/n01/0.JPEG", "val/n01/0.JPEG"}
    told = capsys.readouterr().err
    assert told.count("train/n01/0.JPEG is no whole image and is left out (image file is truncated") == 1
    assert "val/n01/0.JPEG" in told
    assert "2 so far" in told


def test_a_filler_that_copies_no_image_is_mixed_with_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine")
    prepare(tmp_path)
    mixed = AugmentationConfig(mixup=1.0)
    rows = torch.tensor([1, 0, 0])
    weight = torch.tensor([1.0, 1.0, 0.0])
    before = data(tmp_path, augmentation=mixed).train[MicroBatch(rows, weight, 2)]
    (tmp_path / "mine" / "train" / "n01" / "0.JPEG").write_bytes(b"")
    module = data(tmp_path, augmentation=mixed)
    alone = module.train[MicroBatch(rows[:1], weight[:1], 1)]
    beside = module.train[MicroBatch(rows, weight, 2)]
    assert beside["weight"].tolist() == [1.0, 0.0, 0.0]
    assert torch.allclose(beside["x"][0], alone["x"][0], atol=1e-6)
    assert not torch.allclose(before["x"][0], alone["x"][0], atol=1e-3)


def test_fillers_stay_fillers() -> None:
    module = imagenet(augmentation=DEIT)
    weight = torch.tensor([1.0, 1.0, 0.0])
    batch = module.train[MicroBatch(torch.tensor([0, 1, 0]), weight, 40)]
    assert torch.equal(batch["weight"], weight)


def test_strict_holds_out_of_train() -> None:
    strict = {"selection": "validation", "validation_fraction": 0.2}
    module = imagenet(augmentation=UNMIXED, **strict)
    assert module.sizes == {"train": 288, "validation": 72, "test": 120}
    held = torch.cat([batch["x"] for batch in module.val_dataloader()])
    assert torch.cat([batch["y"] for batch in module.val_dataloader()]).bincount().tolist() == [12] * 6
    again = torch.cat([batch["x"] for batch in imagenet(seed=5, **strict).val_dataloader()])
    assert torch.equal(held, again)
    other = torch.cat([batch["x"] for batch in imagenet(split_seed=1, **strict).val_dataloader()])
    assert not torch.equal(held, other)
    kept = torch.cat([batch["x"] for batch in imagenet(**strict).train_dataloader()])
    rows = {row.numpy().tobytes() for row in (*kept, *held)}
    assert rows == {row.numpy().tobytes() for batch in imagenet().train_dataloader() for row in batch["x"]}


def test_further_sizes_of_test() -> None:
    module = imagenet(test_sizes=[48, 64], crop_ratio=0.875)
    further = module.further_tests()
    assert set(further) == {"test_48", "test_64"}
    for size in (48, 64):
        batches = list(module.eval_loader(further[f"test_{size}"]))
        assert torch.cat([batch["y"] for batch in batches]).bincount().tolist() == [20] * 6
        wanted = imagenet(image_size=size, crop_ratio=0.875).test_dataloader()
        assert all(torch.equal(one["x"], other["x"]) for one, other in zip(batches, wanted, strict=True))
    assert imagenet().further_tests() == {}
