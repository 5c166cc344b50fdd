"""Pathfinder: paddles that keep clear, dots that end what they should, nothing else that tells the label."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from reattend.data.lra.generated import RECORD
from reattend.data.lra.pathfinder import (
    GEOMETRIES,
    SPLITS,
    _Block,
    draw_block,
    generate_pathfinder,
    match,
    read_generated,
)
from reattend.data.lra.pathfinder_drawing import draw, save_sheet
from reattend.data.lra.pathfinder_scenes import UNIT, Field, Geometry, Scenes
from reattend.data.lra.pathfinder_snakes import grow_distractors, grow_targets
from reattend.errors import ReattendError


def grown(geometry: Geometry, length: int, batch: int) -> tuple[Field, Scenes, np.ndarray]:
    short = length // 3
    number = geometry.distractor_paddles // short
    field = Field(geometry, batch, 2 * length + number * short, np.random.RandomState(3))
    rows = grow_targets(field, length)
    grow_distractors(field, rows, 2 * length, short, number)
    return field, field.scenes(rows), rows


def points(scenes: Scenes, geometry: Geometry, along: int = 9) -> np.ndarray:
    """(B, S, P, 2): points along each paddle, NaN where there is none."""
    fraction = np.linspace(0, geometry.paddle_length, along)[:, None]
    found = scenes.tails[:, :, None] + fraction * UNIT[scenes.directions][:, :, None]
    found[scenes.directions < 0] = np.nan
    return found


@pytest.mark.parametrize(("size", "length"), [(32, 6), (32, 9), (32, 14), (128, 14)])
def test_paddles_keep_clear_of_others_and_of_the_border(size: int, length: int) -> None:
    geometry = GEOMETRIES[size]
    field, scenes, rows = grown(geometry, length, 40)
    assert len(rows) > 8
    assert (scenes.directions[:, : 2 * length] >= 0).all()
    cell = 1 / geometry.per_pixel
    paddles = points(scenes, geometry)
    assert np.nanmin(paddles) > geometry.marker_radius - cell
    assert np.nanmax(paddles) < size - geometry.marker_radius + cell
    # Paddles of one snake that follow each other are 2 margins apart in a straight line, nearer in a bend.
    snake = np.concatenate([np.repeat([0, 1], length), 2 + np.arange(paddles.shape[1] - 2 * length) // (length // 3)])
    slot = np.arange(paddles.shape[1])
    follow = (np.abs(slot[:, None] - slot) <= 1) & (snake[:, None] == snake)
    margin = np.asarray(geometry.margins)[field.margin[rows]]
    for scene in range(min(len(rows), 8)):
        between = paddles[scene][:, None, :, None] - paddles[scene][None, :, None]
        nearest = np.sqrt((between**2).sum(-1)).min(axis=(2, 3))
        apart = nearest[~follow & ~np.isnan(nearest)]
        assert apart.min() > 2 * margin[scene] - 1.5 * cell


@pytest.mark.parametrize("size", [32, 128])
def test_the_next_paddle_begins_two_margins_on_and_turns_less_than_its_continuity_allows(size: int) -> None:
    geometry = GEOMETRIES[size]
    field, scenes, rows = grown(geometry, 9, 40)
    heads = scenes.heads(geometry)
    margin = np.asarray(geometry.margins)[field.margin[rows]][:, None]
    for snake in (slice(0, 9), slice(9, 18)):
        directions = scenes.directions[:, snake]
        turn = np.abs(np.diff(2 * np.pi * directions / len(UNIT)))
        assert (np.minimum(turn, 2 * np.pi - turn) * geometry.continuity < np.pi / 2).all()
        gap = scenes.tails[:, snake][:, 1:] - heads[:, snake][:, :-1]
        unit = UNIT[directions]
        expected = margin[..., None] * (unit[:, :-1] + unit[:, 1:])
        assert np.abs(gap - expected).max() <= 1 / geometry.per_pixel


def test_a_removed_paddle_leaves_no_trace() -> None:
    geometry = GEOMETRIES[32]
    field = Field(geometry, 5, 4, np.random.RandomState(0))
    before = field.count.copy()
    rows = field.seed(np.arange(5), 0, 10, 20)
    field.extend(rows, 1)
    assert (field.count != before).any()
    field.remove(rows, 1)
    field.remove(rows, 0)
    np.testing.assert_array_equal(field.count, before)
    assert (field.directions == -1).all()


def test_brightness_follows_from_the_distance() -> None:
    geometry = GEOMETRIES[32]
    # One paddle to the right from (10.25, 5.25): pixel centres (10.5, 5.5) and (11.5, 5.5) are 1/4 from its line.
    scenes = Scenes(np.array([[[10.25, 5.25]]]), np.array([[0]]))
    far = np.array([[[25.5, 25.5], [5.5, 25.5]]])
    image = draw(scenes, far, geometry)[0]
    assert image[5, 10] == image[5, 11] == round(255 * 1.5 * 0.5)
    assert image[3, 10] == image[5, 8] == image[4, 10] == 0
    assert image[25, 25] == image[25, 5] == image[24, 25] == 255
    assert image[25, 26] == 255
    assert image[25, 27] == image[25, 23] == 0
    assert image[26, 26] == round(255 * (2.0 - np.sqrt(2)))


def without_pictures(block: _Block, monkeypatch: pytest.MonkeyPatch) -> tuple[Scenes, np.ndarray, np.ndarray]:
    """Scenes, places of the dots (B, 2, 2) and labels of a block, in the order of its pictures."""
    scenes: list[Scenes] = []
    marked: list[np.ndarray] = []

    def number(batch: Scenes, dots: np.ndarray, geometry: Geometry) -> np.ndarray:
        first = sum(len(earlier) for earlier in marked)
        scenes.append(batch)
        marked.append(dots)
        return np.arange(first, first + len(dots))[:, None, None]

    monkeypatch.setattr("reattend.data.lra.pathfinder.draw", number)
    monkeypatch.setattr("reattend.data.lra.pathfinder.grow_distractors", lambda *_: None)
    numbers, labels = draw_block(block)
    order = numbers[:, 0, 0]
    tails = np.concatenate([batch.tails for batch in scenes])[order]
    directions = np.concatenate([batch.directions for batch in scenes])[order]
    return Scenes(tails, directions), np.concatenate(marked)[order], labels


@pytest.mark.parametrize("length", [6, 14])
def test_a_dot_marks_the_beginning_of_a_snake_and_the_end_of_that_or_of_the_other(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes, marked, labels = without_pictures(_Block(32, length, 0, "train", 0, 60), monkeypatch)
    heads = scenes.heads(GEOMETRIES[32])
    for row, label in enumerate(labels):
        begins = [snake for snake in (0, 1) if (scenes.tails[row, snake * length] == marked[row, 0]).all()]
        ends = [snake for snake in (0, 1) if (heads[row, snake * length + length - 1] == marked[row, 1]).all()]
        assert len(begins) == len(ends) == 1
        assert (begins == ends) == bool(label)


def is_told(features: np.ndarray, labels: np.ndarray, **options: float) -> float:
    """Accuracy of a linear classifier, cross-validated."""
    return float(cross_val_score(LogisticRegression(max_iter=500, **options), features, labels, cv=5).mean())


@pytest.mark.slow
def test_where_the_dots_lie_does_not_tell_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    _, marked, labels = without_pictures(_Block(32, 6, 0, "train", 0, 4000), monkeypatch)
    first, second = marked[:, 0] - 16.0, marked[:, 1] - 16.0
    squared = np.stack([((second - first) ** 2).sum(1), (first**2).sum(1), (second**2).sum(1)], axis=1)
    features = np.concatenate([squared, np.sqrt(squared), ((first + second) ** 2).sum(1)[:, None]], axis=1)
    # The standard error is 0.8 points.
    assert is_told((features - features.mean(0)) / features.std(0), labels) < 0.53


def test_matching_leaves_as_many_of_either_label_at_each_place() -> None:
    random = np.random.RandomState(0)
    label = random.randint(2, size=500)
    places = np.stack([random.poisson(3 + label), random.poisson(1, 500)], axis=1)
    kept = match(places, label, 500)
    assert len(kept) > 250
    assert len(set(kept.tolist())) == len(kept)
    for place in np.unique(places[kept], axis=0):
        inside = label[kept][(places[kept] == place).all(axis=1)]
        assert 2 * inside.sum() == len(inside)
    assert label[match(places, label, 7)].sum() == 7
    assert len(match(places, label, 7)) == 14


def dots(image: np.ndarray) -> np.ndarray:
    """Features a person would try first: sums, bright pixels, and where the white areas of the dots lie."""
    white = image[:-1, :-1].astype(float) * image[1:, 1:] * image[1:, :-1] * image[:-1, 1:]
    rows, columns = np.unravel_index(np.argsort(white, axis=None)[-12:], white.shape)
    distances = [np.hypot(rows - r, columns - c) for r, c in zip(rows, columns, strict=True)]
    return np.array(
        [image.mean(), image.std(), (image > 0).mean(), (image > 127).mean(), (image > 200).mean(), np.max(distances),
         rows.std(), columns.std(), abs(rows.mean() - 15.5), abs(columns.mean() - 15.5)]
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("length", [6, 14])
def test_simple_statistics_do_not_tell_the_label(length: int) -> None:
    images, labels = (
        np.concatenate(parts)
        for parts in zip(
            *(draw_block(_Block(32, length, 0, "train", number, 1000)) for number in range(4)), strict=True
        )
    )
    features = np.stack([dots(image) for image in images])
    features = (features - features.mean(0)) / features.std(0)
    features = np.concatenate([features, features**2], axis=1)
    # The standard error is 0.8 points.
    assert is_told(features, labels) < 0.53
    assert is_told(images.reshape(len(images), -1) / 255.0, labels, C=0.01) < 0.53


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pathfinder")
    generate_pathfinder(folder, 32, 6, (60, 20, 10), workers=1)
    return folder


def test_files_hold_balanced_splits_that_differ(small: Path) -> None:
    splits = read_generated(small)
    for split, number in zip(SPLITS, (60, 20, 10), strict=True):
        images, labels = splits[split]
        assert images.shape == (number, 32, 32)
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64
        assert 2 * labels.sum() == number
    pictures = [image.tobytes() for split in SPLITS for image in splits[split][0]]
    assert len(set(pictures)) == len(pictures)


def test_the_stream_of_pictures_stays_as_it_is(small: Path) -> None:
    # A change here changes every run's data: raise the format number of what is prepared.
    digest = hashlib.sha256((small / "test.images.npy").read_bytes()).hexdigest()
    assert digest == "e441fa917a55d039ade745df9c7e95f8ee6214b16869e18be4a1991e9013cfc1"


def test_is_the_same_with_other_numbers_of_processes_and_of_pictures(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_pathfinder(tmp_path, 32, 6, (60, 20, 10), workers=2)
    for split, kind in itertools.product(SPLITS, ("images", "labels")):
        name = f"{split}.{kind}.npy"
        assert (tmp_path / name).read_bytes() == (small / name).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in small.iterdir()}
    images, _ = read_generated(small)["test"]
    np.testing.assert_array_equal(draw_block(_Block(32, 6, 0, "test", 0, 10))[0], images)


def test_is_not_made_twice(small: Path) -> None:
    made = (small / "train.images.npy").stat().st_mtime_ns
    generate_pathfinder(small, 32, 6, (60, 20, 10), workers=1)
    assert (small / "train.images.npy").stat().st_mtime_ns == made
    with pytest.raises(ReattendError, match=r"other options: length=6 where 9 is wanted"):
        generate_pathfinder(small, 32, 9, (60, 20, 10), workers=1)


def test_wrong_options_and_folders_are_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match="size 32 or 128 and length 6, 9, 14, not with size 64 and length 14"):
        generate_pathfinder(tmp_path, 64)
    with pytest.raises(ReattendError, match=r"even sizes, not \(3, 2, 2\)"):
        generate_pathfinder(tmp_path, sizes=(3, 2, 2))
    with pytest.raises(ReattendError, match=rf"holds no whole generated Pathfinder set: there is no {RECORD}"):
        read_generated(tmp_path)
    for path in small.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "train.labels.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ReattendError, match="holds no whole generated Pathfinder set"):
        read_generated(tmp_path)


def test_a_sheet_shows_every_picture(small: Path, tmp_path: Path) -> None:
    images, labels = read_generated(small)["validation"]
    save_sheet(tmp_path / "sheet.png", images, labels, columns=5, zoom=2)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (5 * 70 + 6, 4 * 84 + 6)
        shown = np.asarray(sheet)
    second = shown[84 + 18 : 84 + 18 + 64, 6 + 70 : 6 + 70 + 64]
    np.testing.assert_array_equal(second[::2, ::2], images[6])
