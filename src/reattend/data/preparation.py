"""From parsed series to arrays: interpolation, standardisation, padding, class codes, the strict split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reattend.data.ts_format import Series, TimeSeriesFile
from reattend.errors import ReattendError
from reattend.seeding import derive


def interpolate_missing(file: TimeSeriesFile) -> list[Series]:
    """Series of `file` with every NaN replaced: linearly between its neighbours, at the ends by the nearest value.

    As pandas' `interpolate(method="linear", limit_direction="both")`, which gzerveas/mvts_transformer applies to each
    series before it normalises. Like that, it leaves a channel without any value as it is; see `Standardiser`. Series
    without a NaN are those of `file`, not copies.
    """
    return [_interpolated(series) if np.isnan(series).any() else series for series in file.series]


def _interpolated(series: Series) -> Series:
    series = series.copy()
    steps = np.arange(series.shape[1])
    for values in series:
        known = ~np.isnan(values)
        if not known.any():
            continue
        values[~known] = np.interp(steps[~known], steps[known], values[known])
    return series


@dataclass(frozen=True)
class Standardiser:
    """(x - mean) / std per channel, with statistics over all steps of all training series.

    std is the sample standard deviation (ddof=1), as in gzerveas/mvts_transformer; its 2e-16 in the denominator is left
    out. A channel that is constant over the training series has nothing to divide by and is centred only.

    A series' channel without any value is taken to be the channel's mean over training, 0 when standardised (assumed:
    the followed code would go on with NaN). A channel without any value in training is 0 in all series.
    """

    mean: Series
    std: Series

    @classmethod
    def fit(cls, series: Sequence[Series]) -> Standardiser:
        """Statistics of `series`, each (channels, length)."""
        mean, std = np.empty(len(series[0])), np.ones(len(series[0]))
        for channel in range(len(mean)):
            # One channel at a time, or wide sets are in memory twice.
            known = [case[channel] for case in series if not np.isnan(case[channel]).any()]
            if not known:
                mean[channel] = np.nan
                continue
            steps = np.concatenate(known)
            # The floating-point mean of equal values is not always that value, nor their spread then zero.
            constant = steps.min() == steps.max()
            mean[channel] = steps[0] if constant else steps.mean()
            std[channel] = 1.0 if constant else steps.std(ddof=1) or 1.0
        return cls(mean, std)

    def __call__(self, series: Series) -> Series:
        """Standardised copy of `series` (channels, length)."""
        standardised: Series = (series - self.mean[:, None]) / self.std[:, None]
        standardised[np.isnan(standardised)] = 0.0
        return standardised


def pad(
    series: Sequence[Series], max_length: int, change: Callable[[Series], Series] = lambda series: series
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Stacks series, each (channels, length), clipped to `max_length` or padded to it with zeros at the end.

    Each goes through `change` first, one at a time, so that the stack is the only copy.

    Returns the stack (cases, max_length, channels) and its mask (cases, max_length), True at real steps.
    """
    x = np.zeros((len(series), max_length, series[0].shape[0]), dtype=np.float32)
    mask = np.zeros((len(series), max_length), dtype=np.bool_)
    for case, values in enumerate(series):
        length = min(values.shape[1], max_length)
        x[case, :length] = change(values[:, :length]).T
        mask[case, :length] = True
    return x, mask


def class_names(file: TimeSeriesFile) -> list[str]:
    """The classes that occur in the training file, sorted; the code of a class is its place.

    Raises:
        ReattendError: there is only one.
    """
    names = sorted(set(file.labels or ()))
    if len(names) < 2:
        raise ReattendError(
            f"{file.path}: all {len(file.series)} cases are of class '{names[0]}': nothing can be learned."
        )
    return names


def class_codes(file: TimeSeriesFile, names: Sequence[str]) -> NDArray[np.int64]:
    """Code of each case's class.

    Raises:
        ReattendError: a class does not occur in `names`.
    """
    codes = {name: code for code, name in enumerate(names)}
    for line, label in zip(file.lines, file.labels or (), strict=True):
        if label not in codes:
            raise ReattendError(
                f"{file.path}, line {line}: class '{label}' does not occur in the training file, "
                f"which has {', '.join(names)}."
            )
    return np.array([codes[label] for label in file.labels or ()], dtype=np.int64)


def hold_out(
    codes: NDArray[np.int64] | None, size: int, fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Splits cases 0..size-1 into training and validation, by `seed` alone.

    With `codes` the split is stratified: of each class the rounded `fraction` goes to validation, and at least one case
    stays in training.

    Returns both index arrays, ascending.

    Raises:
        ReattendError: one of the two would be empty.
    """
    generator = np.random.default_rng(derive(seed, "split"))
    strata = [np.arange(size)] if codes is None else [np.flatnonzero(codes == code) for code in np.unique(codes)]
    held = []
    for members in strata:
        count = min(int(fraction * len(members) + 0.5), len(members) - 1)
        held.append(generator.permutation(members)[:count])
    validation = np.sort(np.concatenate(held))
    if not 0.0 < fraction < 1.0 or len(validation) == 0:
        raise ReattendError(
            f"Holding out a fraction of {fraction} of {size} training cases leaves none for validation. "
            "Raise protocol.validation_fraction (below 1), or choose protocol=published."
        )
    return np.setdiff1d(np.arange(size), validation), validation
