"""Is a published number reproduced? Two one-sided tests of equivalence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reattend.tables.evidence import CellVerdict, Measured, PlaceEvidence
from reattend.tables.table import Place, Published, Table, Value
from reattend.tables.welch import LEAST_SEEDS, LEVEL, Effect, Sample

NOT_COMPARABLE = "quick scale, stand-in data and generated Pathfinder are never compared with published numbers"
_SPREAD_OF_A_MEAN = "the published spread of a mean over columns may be a mean of spreads, so it is not used"


@dataclass(frozen=True)
class Comparison:
    """What the two one-sided tests say of an effect; see `PlaceEvidence`."""

    interval: tuple[float, float]
    verdict: CellVerdict
    more_seeds: int | None


def compare(effect: Effect, low: float, high: float) -> Comparison:
    """Tests whether `effect` lies within (low, high).

    It is reproduced if its 90 % confidence interval lies within that range, which is the two one-sided tests at 5 %
    (Schuirmann 1987), and different if the interval lies outside as a whole.
    """
    interval = effect.interval()
    if low < interval[0] and interval[1] < high:
        return Comparison(interval, "reproduced", None)
    if interval[0] >= high or interval[1] <= low:
        return Comparison(interval, "different", None)
    power = Effect.power_inside if low < effect.value < high else Effect.power_outside
    return Comparison(interval, "undecided", effect.more_seeds(lambda more: power(more, low, high, LEVEL)))


def judge_place(
    table: Table, place: Place, measured: Mapping[Place, Measured], lacking: str, left_out: str, comparable: bool
) -> PlaceEvidence:
    """Compares ours with the published number of a place.

    The difference of the means is tested against the value's margin; the published one takes part with its spread
    where the number of runs behind it is known, else as exact. For a value with `relative_to` the ratio of two ratios,
    ours to our baseline and theirs to theirs, is tested on the log scale against the relative margin. What rounding of
    the printed numbers may hide is added to the margin.

    Args:
        table: whose place it is.
        place: of a row, a column or the mean, and a value of the table.
        measured: ours, of all places.
        lacking: why ours is not among these.
        left_out: what of the runs it does not use.
        comparable: False for results that are never compared with published ones.
    """
    ours, value = measured.get(place), table.values[place.value]
    published = table.published_number(place.row, place.column, place.value)
    known = PlaceEvidence(place, ours, published, None, None, None, "not compared", left_out=left_out)
    if ours is None or published is None:
        return replace(known, why=lacking if ours is None else "no published number is known")
    why = _not_compared(published, value, comparable)
    baseline = _baseline(table, place, measured) if value.relative_to else None
    if isinstance(baseline, str):
        return replace(known, why=why or baseline)
    known = replace(known, compared=_compared(ours, published, baseline))
    if why or value.margin is None:
        return replace(known, why=why)
    groups = {"": ours} | ({f"{value.relative_to} has ": baseline[0]} if baseline else {})
    few = [f"{whose}{len(group.by_seed)}" for whose, group in groups.items() if len(group.by_seed) < LEAST_SEEDS]
    effect, low, high = _to_be_tested(table, place, ours, published, baseline, value.margin)
    shown = math.exp if baseline else float
    known = replace(known, effect=shown(effect.value))
    if few:
        return replace(known, why=f"{', '.join(few)} of at least {LEAST_SEEDS} seeds")
    made = compare(effect, low, high)
    if place.column == table.mean and _published_sample(published):
        known = replace(known, left_out="; ".join(told for told in (left_out, _SPREAD_OF_A_MEAN) if told))
    interval = (shown(made.interval[0]), shown(made.interval[1]))
    return replace(known, interval=interval, verdict=made.verdict, more_seeds=made.more_seeds)


_Baseline = tuple[Measured, Published]


def _not_compared(published: Published, value: Value, comparable: bool) -> str:
    if not comparable:
        return NOT_COMPARABLE
    if published.certainty == "unconfirmed":
        return "the published number is unconfirmed"
    return "" if value.margin is not None else "the table states no margin for it"


def _baseline(table: Table, place: Place, measured: Mapping[Place, Measured]) -> _Baseline | str:
    """Our and the published number of the row that others are divided by, or why there is no ratio."""
    row, value = str(table.values[place.value].relative_to), table.values[place.value]
    if place.row == row:
        return "the others are divided by it"
    base = measured.get(replace(place, row=row))
    theirs = table.published_number(row, place.column, place.value)
    if base is None or theirs is None:
        return f"{row}, by which it is divided, has no {'run' if base is None else 'published number'}"
    if theirs.certainty == "unconfirmed":
        return f"the published number of {row}, by which it is divided, is unconfirmed"
    published = table.published_number(place.row, place.column, place.value)
    devices = {run.result.device for run in (*measured[place].runs, *base.runs)}
    if len(devices) > 1:
        return f"measured on different devices: {', '.join(sorted(devices))}"
    if min(*measured[place].numbers, *base.numbers) <= 0:
        return "a figure is not positive, so there is no ratio"
    if published is not None and min(published.number, theirs.number) <= _hidden(value):
        return "a published number is too small for the digits that it is printed with, so there is no ratio"
    return base, theirs


def _compared(ours: Measured, published: Published, baseline: _Baseline | None) -> tuple[float, float]:
    if baseline is None:
        return ours.mean, published.number
    return ours.mean / baseline[0].mean, published.number / baseline[1].number


def _to_be_tested(
    table: Table, place: Place, ours: Measured, published: Published, baseline: _Baseline | None, margin: float
) -> tuple[Effect, float, float]:
    """The effect and the range in which it counts as none, on the log scale with a baseline."""
    hidden = _hidden(table.values[place.value])
    published_ones = [published, *([baseline[1]] if baseline else [])] if place.column != table.mean else []
    samples = tuple(sample for sample in map(_published_sample, published_ones) if sample is not None)
    if baseline is None:
        effect = Effect(ours.mean - published.number, (ours.sample,), samples)
        return effect, -margin - hidden, margin + hidden
    base, theirs = baseline
    logs = (ours.sample.log(), base.sample.log())
    ratio = math.log(published.number / theirs.number)
    effect = Effect(logs[0].mean - logs[1].mean - ratio, logs, tuple(sample.log() for sample in samples))
    least = math.log((published.number - hidden) / (theirs.number + hidden))
    most = math.log((published.number + hidden) / (theirs.number - hidden))
    return effect, least - ratio - math.log1p(margin), most - ratio + math.log1p(margin)


def _hidden(value: Value) -> float:
    """What rounding may have hidden of a printed number."""
    return 0.5 * 10.0**-value.digits


def _published_sample(published: Published) -> Sample | None:
    if published.spread is None or published.runs is None or published.runs < 2:
        return None
    return Sample(published.number, published.spread, published.runs)
