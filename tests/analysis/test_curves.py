"""Training curves."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from reattend.analysis.curves import curves, mean_series, series
from reattend.analysis.figures import line_looks
from reattend.errors import ReattendError
from reattend.runs.metrics import FILE, MetricsFile


def run(folder: Path, losses: list[float], accuracies: list[float], split: str = "test") -> Path:
    """A run folder with these metrics at epochs 1, 2, ..."""
    folder.mkdir()
    file = MetricsFile(folder / FILE)
    for epoch, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True), start=1):
        file.append(epoch, 4 * epoch, {"train/loss": loss, f"{split}/accuracy": accuracy, f"{split}/loss": 9.0})
    return folder


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    return [run(tmp_path / "s0", [2.0, 1.0, 0.5], [0.2, 0.4, 0.6]), run(tmp_path / "s1", [4.0, 3.0], [0.4, 0.8])]


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]


def thick(axes: Any) -> list[Any]:
    return [line for line in axes.get_lines() if line.get_linewidth() > 1]


def test_the_mean_is_over_epochs_that_all_seeds_have(seeds: list[Path]) -> None:
    assert series(seeds[0], "train/loss") == {1: 2.0, 2: 1.0, 3: 0.5}
    assert mean_series([series(folder, "train/loss") for folder in seeds]) == {1: 3.0, 2: 2.0}
    assert mean_series([]) == {}


def test_a_thick_line_is_the_mean_and_each_seed_has_a_thin_one(seeds: list[Path]) -> None:
    figure = curves({"Set": {"bn": seeds}}, factor=100.0, unit="%", title="a title")
    loss, accuracy = figure.get_axes()
    assert [points(line) for line in loss.get_lines()] == [
        [(1, 2), (2, 1), (3, 0.5)],
        [(1, 4), (2, 3)],
        [(1, 3), (2, 2)],
    ]
    assert points(thick(accuracy)[0]) == [(1, pytest.approx(30)), (2, pytest.approx(60))]
    assert len(thick(loss)) == len(thick(accuracy)) == 1
    assert loss.get_yscale() == "log"
    assert accuracy.get_ylabel() == "accuracy (%)"
    assert accuracy.get_title() == "Set: test accuracy"
    assert figure.get_suptitle() == "a title"


def test_an_attention_looks_the_same_on_every_set(seeds: list[Path]) -> None:
    figure = curves({"A": {"softmax": [seeds[0]], "bn": seeds}, "B": {"softmax": [], "bn": seeds}})
    first, second = figure.get_axes()[0], figure.get_axes()[2]
    looks = [[(line.get_color(), line.get_linestyle()) for line in thick(axes)] for axes in (first, second)]
    assert len(set(looks[0])) == 2
    assert looks[1] == looks[0][1:]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["softmax", "bn"]
    thin = {line.get_color() for line in first.get_lines()}
    assert thin == {colour for colour, _ in looks[0]}


def test_many_attentions_can_be_told_apart() -> None:
    assert len(set(itertools.islice(line_looks(), 28))) == 28


def test_the_strict_protocol_shows_the_held_out_part(tmp_path: Path) -> None:
    figure = curves({"Set": {"bn": [run(tmp_path / "s0", [2.0, 1.0], [0.2, 0.4], split="val")]}})
    assert figure.get_axes()[1].get_title() == "Set: validation accuracy"
    assert points(thick(figure.get_axes()[1])[0]) == [(1, 0.2), (2, 0.4)]


def test_the_first_epochs_do_not_squeeze_the_others(tmp_path: Path) -> None:
    folder = run(tmp_path / "s0", [1.0] * 20, [0.0, 0.0, *[0.9, 1.0] * 9])
    low, high = curves({"Set": {"bn": [folder]}}).get_axes()[1].get_ylim()
    assert (low, high) == pytest.approx((0.895, 1.005))


def test_missing_metrics_are_told(tmp_path: Path) -> None:
    with pytest.raises(ReattendError, match=r"metrics\.csv cannot be read"):
        curves({"Set": {"bn": [tmp_path / "s0"]}})
