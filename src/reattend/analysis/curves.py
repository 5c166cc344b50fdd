"""Training curves of several runs in one picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reattend.analysis.figures import line_looks
from reattend.runs.metrics import FILE, read_metrics

Series = dict[int, float]


def series(folder: Path, metric: str) -> Series:
    """The values of `metric` by epoch, from the run's `metrics.csv`; empty if it was never measured.

    Raises:
        ReattendError: the file is missing or malformed.
    """
    return {row.epoch: row.value for row in read_metrics(folder / FILE) if row.metric == metric}


def mean_series(runs: Sequence[Series]) -> Series:
    """The mean over runs at every epoch that all of them have."""
    common = set.intersection(*map(set, runs)) if runs else set()
    return {epoch: statistics.fmean(run[epoch] for run in runs) for epoch in sorted(common)}


def curves(
    runs: Mapping[str, Mapping[str, Sequence[Path]]],
    *,
    metric: str = "accuracy",
    factor: float = 1.0,
    unit: str = "",
    title: str = "",
) -> Figure:
    """Training loss and a metric against the epoch: a thick line for the mean over seeds, a thin one for each seed.

    Each data set has a row of two panels, and each attention one colour and line style in all of them. The loss is what
    was trained on, an attention's own loss included. The metric is measured on test; on the held-out part of the
    training data where the runs never looked at test (protocol=strict). Its axis fits the epochs after the first tenth,
    which would otherwise hide all others.

    Args:
        runs: run folders by data set and attention; an attention without runs is left out.
        metric: its name without the split.
        factor: from the number in `metrics.csv` to the one shown.
        unit: of the number shown.
        title: above the picture.

    Raises:
        ReattendError: the metrics of a run are missing or malformed.
    """
    attentions = list(dict.fromkeys(name for by_attention in runs.values() for name in by_attention))
    looks = dict(zip(attentions, line_looks(), strict=False))
    figure = Figure(figsize=(9.5, 3.1 * len(runs) + 0.8), layout="constrained")
    figure.suptitle(title, fontsize=9)
    grid = figure.subplots(len(runs), 2, squeeze=False)
    handles = {}
    for (dataset, by_attention), (loss_axes, metric_axes) in zip(runs.items(), grid, strict=True):
        split = _split(by_attention, metric)
        for attention, folders in by_attention.items():
            if not folders:
                continue
            look = looks[attention]
            _lines(loss_axes, [series(folder, "train/loss") for folder in folders], look, 1.0)
            measured = [series(folder, f"{split}/{metric}") for folder in folders]
            handles[attention] = _lines(metric_axes, measured, look, factor)
        loss_axes.set_yscale("log")
        _fit_later_epochs(metric_axes)
        _name(loss_axes, f"{dataset}: training loss", "loss, the attention's own included (nats)")
        name = {"test": "test", "val": "validation"}[split]
        _name(metric_axes, f"{dataset}: {name} {metric}", f"{metric} ({unit})" if unit else metric)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize=8, handlelength=3.5)
    return figure


def _split(by_attention: Mapping[str, Sequence[Path]], metric: str) -> str:
    folders = [folder for folders in by_attention.values() for folder in folders]
    on_test = any(series(folder, f"test/{metric}") for folder in folders)
    return "test" if on_test or not folders else "val"


def _lines(axes: Axes, runs: Sequence[Series], look: tuple[str, str], factor: float) -> Line2D:
    """Draws each run and their mean, which is returned."""
    colour, style = look
    for run in runs:
        axes.plot(list(run), [factor * value for value in run.values()], color=colour, linewidth=0.5, alpha=0.35)
    mean = mean_series(runs)
    values = [factor * value for value in mean.values()]
    marker = "o" if len(mean) == 1 else None  # a line through one point is not seen
    return axes.plot(list(mean), values, color=colour, linestyle=style, linewidth=1.4, marker=marker)[0]


def _fit_later_epochs(axes: Axes) -> None:
    points = [point for line in axes.get_lines() for point in np.asarray(line.get_xydata()).tolist()]
    last = max((x for x, _ in points), default=0)
    later = [y for x, y in points if x > last / 10]
    if later and (extent := max(later) - min(later)):
        axes.set_ylim(min(later) - 0.05 * extent, max(later) + 0.05 * extent)


def _name(axes: Axes, title: str, ylabel: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("epoch", fontsize=8)
    axes.set_ylabel(ylabel, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(True, linewidth=0.3, color="0.85")
