"""Interpolation, standardisation, padding, class codes and the strict split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reattend.data.preparation import Standardiser, class_codes, class_names, hold_out, interpolate_missing, pad
from reattend.data.ts_format import Series, TimeSeriesFile
from reattend.errors import ReattendError


def file_of(*series: Series, labels: list[str] | None = None) -> TimeSeriesFile:
    lines = [10 + case for case in range(len(series))]
    return TimeSeriesFile(Path("Toy_TRAIN.ts"), "Toy", list(series), lines, (), labels, None)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_interpolation_is_that_of_the_followed_code(length: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    series = random.standard_normal((2, length))
    series[random.random((2, length)) < 0.5] = np.nan
    series[:, random.integers(length)] = 1.5
    expected = pd.DataFrame(series.T).interpolate(method="linear", limit_direction="both").to_numpy().T
    before = series.copy()
    np.testing.assert_allclose(interpolate_missing(file_of(series))[0], expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(series, before)


def test_a_channel_without_values_is_its_mean_over_training() -> None:
    whole, empty = np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(3, 4)
    empty[1], whole[2], empty[2] = np.nan, np.nan, np.nan
    series = interpolate_missing(file_of(whole, empty))
    standardise = Standardiser.fit(series)
    alone = Standardiser.fit([whole[:2]])
    np.testing.assert_array_equal(standardise(series[0])[1], alone(whole[:2])[1])
    np.testing.assert_array_equal(standardise(series[1])[1], np.zeros(4))
    # The last channel has no value in training: nothing is known of it on test either.
    np.testing.assert_array_equal(standardise(np.full((3, 4), 5.0))[2], np.zeros(4))
    assert np.isfinite(pad(series, 6, standardise)[0]).all()


def test_statistics_are_those_of_pandas_over_all_steps() -> None:
    random = np.random.default_rng(0)
    series = [random.standard_normal((3, length)) * [[1], [1e-3], [1e6]] + 7 for length in (4, 9, 1)]
    table = pd.concat([pd.DataFrame(case.T) for case in series])
    standardise = Standardiser.fit(series)
    np.testing.assert_allclose(standardise.mean, table.mean(), rtol=1e-13)
    np.testing.assert_allclose(standardise.std, table.std(), rtol=1e-10)
    table = (table - table.mean()) / (table.std() + np.finfo(float).eps)
    np.testing.assert_allclose(np.concatenate([standardise(case) for case in series], axis=1).T, table, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 / 3])
def test_a_constant_channel_is_centred_only(value: float) -> None:
    series = [np.stack([np.full(7, value), np.arange(7.0)]) for _ in range(3)]
    standardise = Standardiser.fit(series)
    assert np.array_equal(standardise(series[0])[0], np.zeros(7))
    np.testing.assert_allclose(standardise(series[0] + 2.0)[0], np.full(7, 2.0), rtol=1e-7)


def test_a_single_step_has_no_spread() -> None:
    assert np.array_equal(Standardiser.fit([np.array([[3.0]])])(np.array([[3.0]])), [[0.0]])


def test_padding_and_clipping() -> None:
    x, mask = pad([np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])], 3)
    assert x.tolist() == [[[1, 3], [2, 4], [0, 0]], [[1, 5], [2, 6], [3, 7]]]
    assert mask.tolist() == [[True, True, False], [True, True, True]]
    assert x.dtype == np.float32


def test_class_codes_come_from_training() -> None:
    one = np.ones((1, 2))
    names = class_names(file_of(one, one, one, labels=["b", "a", "b"]))
    assert names == ["a", "b"]
    assert class_codes(file_of(one, labels=["b"]), names).tolist() == [1]
    with pytest.raises(ReattendError, match=r"line 11: class 'c' does not occur in the training file, which has a, b"):
        class_codes(file_of(one, one, labels=["a", "c"]), names)


def test_one_class_only() -> None:
    one = np.ones((1, 2))
    with pytest.raises(ReattendError, match=r"all 2 cases are of class 'a'"):
        class_names(file_of(one, one, labels=["a", "a"]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 5))
def test_strict_split_is_stratified(sizes: list[int], seed: int) -> None:
    sizes.append(10)
    codes = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept, held = hold_out(codes, len(codes), 0.2, seed)
    assert sorted([*kept, *held]) == list(range(len(codes)))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held) > 0).all()
    for code, size in enumerate(sizes):
        count = int((codes[held] == code).sum())
        assert abs(count - 0.2 * size) <= 0.5
        assert count < size


def test_split_is_drawn_by_its_seed() -> None:
    codes = np.arange(100) % 4
    splits = [tuple(hold_out(codes, 100, 0.2, seed)[1]) for seed in (0, 0, 1)]
    assert splits[0] == splits[1]
    assert splits[0] != splits[2]
    assert len(hold_out(None, 33, 0.2, 0)[1]) == 7


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_nothing_to_hold_out(fraction: float) -> None:
    with pytest.raises(ReattendError, match=r"protocol\.validation_fraction"):
        hold_out(np.arange(10) % 2, 10, fraction, 0)
    with pytest.raises(ReattendError, match=r"of 3 training cases leaves none"):
        hold_out(np.arange(3), 3, 0.2, 0)
