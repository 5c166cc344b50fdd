"""Images by sub-pixels: their order, their augmentation, and smaller ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from reattend.config import compose, read
from reattend.data import PixelData
from reattend.data.images.sets import image_set
from reattend.data.language.pixels import AugmentedPixels, averaged
from reattend.data.samplers import MicroBatch, TrainSampler
from reattend.data.source import source_of
from reattend.errors import ReattendError


def pixel_data(**options: Any) -> PixelData:
    given = {"root": "nowhere", "batch_size": 32, "seed": 0, "image_size": 32, "standin": True}
    return PixelData("cifar10", **(given | options))


def batch(start: int, size: int, epoch: int = 0) -> MicroBatch:
    return MicroBatch(torch.arange(start, start + size), torch.ones(size), size, epoch, start)


def test_a_sub_pixel_stands_behind_those_of_its_row_and_the_channels_of_its_pixel() -> None:
    data = pixel_data()
    pixels = image_set("cifar10", "nowhere", True, None, None).open().splits["test"].pixels  # type: ignore[attr-defined]
    found = data.test[batch(5, 2)]
    assert found["x"].shape == (2, 3072)
    assert data.shape == {"vocabulary": 256, "max_length": 3072, "num_outputs": 256}
    for row, column, channel in ((0, 0, 2), (0, 1, 0), (7, 31, 1), (31, 31, 2)):
        assert found["x"][1, 3 * (32 * row + column) + channel] == pixels[6, row, column, channel]
    assert torch.equal(found["x"], found["y"])


IMAGES = np.random.default_rng(0).integers(0, 256, (64, 4, 4, 3), dtype=np.uint8)


def augmented(**options: Any) -> AugmentedPixels:
    given = {"seed": 0, "flip": 0.5, "max_shift": 10}
    return AugmentedPixels(IMAGES, np.arange(len(IMAGES)), **(given | options))


def tokens(samples: AugmentedPixels, micro_batch: MicroBatch) -> NDArray[np.int64]:
    found: NDArray[np.int64] = samples[micro_batch]["x"].numpy().reshape(-1, 4, 4, 3)
    return found


def test_an_image_is_flipped_or_not_then_shifted_as_a_whole_and_clipped() -> None:
    flips, shifts = [], []
    for epoch in range(12):
        for image, found in zip(IMAGES, tokens(augmented(), batch(0, 64, epoch)), strict=True):
            matching = [
                (flipped, shift)
                for flipped, base in ((False, image), (True, image[:, ::-1]))
                for shift in range(-10, 11)
                if np.array_equal(found, np.clip(base.astype(int) + shift, 0, 255))
            ]
            assert len(matching) == 1
            flips.append(matching[0][0])
            shifts.append(matching[0][1])
    assert np.mean(flips) == pytest.approx(0.5, abs=0.08)
    counts = np.bincount(np.array(shifts) + 10, minlength=21)
    assert len(counts) == 21
    assert counts.min() > 0
    np.testing.assert_array_equal(tokens(augmented(flip=0, max_shift=0), batch(0, 64)), IMAGES)


def test_what_is_drawn_depends_on_seed_epoch_and_place_alone() -> None:
    whole = tokens(augmented(), batch(0, 64))
    parts = [tokens(augmented(), batch(start, 16)) for start in (48, 0, 32, 16)]
    np.testing.assert_array_equal(np.concatenate([parts[1], parts[3], parts[2], parts[0]]), whole)
    assert not np.array_equal(tokens(augmented(), batch(0, 64, epoch=1)), whole)
    assert not np.array_equal(tokens(augmented(seed=1), batch(0, 64)), whole)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_accumulation_and_an_interruption_leave_the_images_alone(accumulation: int) -> None:
    def epoch(start: int) -> torch.Tensor:
        sampler = TrainSampler(64, 16, 0, accumulation=accumulation)
        sampler.set_epoch(3)
        sampler.start = start * accumulation
        return torch.cat([augmented()[micro_batch]["x"] for micro_batch in sampler])

    sampler = TrainSampler(64, 16, 0)
    sampler.set_epoch(3)
    usual = torch.cat([augmented()[micro_batch]["x"] for micro_batch in sampler])
    assert torch.equal(epoch(0), usual)
    assert torch.equal(epoch(2), usual[32:])


def test_smaller_images_are_means_over_squares_rounded_half_up() -> None:
    found = averaged(IMAGES, 2)
    for row, column, channel in ((0, 0, 0), (1, 0, 2), (1, 1, 1)):
        square = IMAGES[7, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2, channel].astype(int)
        assert found[7, row, column, channel] == (square.sum() + 2) // 4
    np.testing.assert_array_equal(averaged(IMAGES, 4), IMAGES)
    assert pixel_data(image_size=8).test[batch(0, 2)]["x"].shape == (2, 192)


def test_the_source_knows_what_the_data_has() -> None:
    for overrides, options in (
        (["scale=quick"], {}),
        (["protocol=strict"], {"selection": "validation", "validation_fraction": 0.2}),
    ):
        config = read(compose(["task=image_ar/cifar10", "attention=linear", "data=standin", *overrides]))
        source, data = source_of(config), pixel_data(image_size=config.task.data_options["image_size"], **options)
        facts = source.facts()
        assert facts is not None
        assert facts.shape == data.shape
        assert facts.sizes == {"validation": 0, **data.sizes}
        assert source.checksum() == data.checksum


def test_grey_images_have_one_sub_pixel_a_pixel() -> None:
    data = PixelData("fashion_mnist", root="nowhere", batch_size=32, seed=0, image_size=14, standin=True)
    assert data.shape["max_length"] == 196
    assert data.test[batch(0, 1)]["x"].shape == (1, 196)


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"32 x 32 pixels are averaged over squares.* Nearest valid: 8\."):
        pixel_data(image_size=9)
    with pytest.raises(ReattendError, match=r"task.dataset=cifar: .* Did you mean 'cifar10'\?"):
        PixelData("cifar", root="nowhere", batch_size=32, seed=0, image_size=32)
    config = read(compose(["task=image_ar/cifar10", "attention=linear", f"data.root={tmp_path}"]))
    with pytest.raises(ReattendError, match=r"(?s)Wanted: data_batch_1.*Source: .*data=standin"):
        source_of(config).require()
