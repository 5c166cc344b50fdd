"""What the runs of a table say beside the paper: all that a page shows, as plain data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from reattend.tables.cells import Cell
from reattend.tables.request import Request
from reattend.tables.results import Found
from reattend.tables.runs import TableRun
from reattend.tables.table import Claim, Place, Published
from reattend.tables.welch import Sample

CellVerdict = Literal["reproduced", "different", "undecided", "not compared"]
ClaimVerdict = Literal["supported", "contradicted", "undecided", "not compared"]


@dataclass(frozen=True)
class Measured:
    """One value of a place at each seed, in the table's unit, and the runs that it comes from."""

    by_seed: Mapping[int, float]
    runs: tuple[Found, ...]

    @property
    def numbers(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def mean(self) -> float:
        return statistics.mean(self.numbers)

    @property
    def std(self) -> float | None:
        """The sample standard deviation; None for a single number."""
        return statistics.stdev(self.numbers) if len(self.by_seed) > 1 else None

    @property
    def sample(self) -> Sample:
        """Mean, spread and count; a single number has no spread."""
        return Sample(self.mean, self.std or 0.0, len(self.by_seed))


@dataclass(frozen=True)
class PlaceEvidence:
    """Ours beside the published number of one place.

    Attributes:
        place: row, column, which may be the mean, and value.
        measured: ours; None without a finished run, and for a mean over columns of which one has none.
        published: the paper's; None where it is not known.
        compared: what the verdict compares: our mean and the published number, or for a value with `relative_to` each
            divided by that row's, ours on the same device. None where one of them is missing.
        effect: ours minus the published one, of `compared`; for a value with `relative_to` ours divided by it.
        interval: its 90 % confidence interval, the one that the two one-sided tests at 5 % amount to.
        verdict: "reproduced" if the interval lies within the margin, "different" if it lies outside.
        why: why there is no verdict.
        more_seeds: about how many further seeds would decide an undecided one; None if that cannot be said.
        left_out: what of the runs or of the published number is not used: runs on other data or without the metric,
            seeds that not all columns have, the spread of a mean; "" if nothing.
    """

    place: Place
    measured: Measured | None
    published: Published | None
    compared: tuple[float, float] | None
    effect: float | None
    interval: tuple[float, float] | None
    verdict: CellVerdict
    why: str = ""
    more_seeds: int | None = None
    left_out: str = ""


@dataclass(frozen=True)
class ClaimEvidence:
    """What the runs say of a claim.

    Attributes:
        name, claim: of the table.
        effect: the difference or ratio of the means, left to right, or where both are of the same runs the mean
            difference or geometric mean ratio of their seeds; None where a side has no run.
        interval: its 90 % confidence interval, the one that one-sided tests at 5 % amount to before any correction.
        p: of the test that the claim does not hold; `adjusted_p` after Holm's correction over the table's claims.
        p_against, adjusted_p_against: of the test that it does hold.
        verdict: "supported" if `adjusted_p` is below 5 %, "contradicted" if `adjusted_p_against` is.
        why: why there is no verdict, or none but "undecided".
        more_seeds: as of a place, at the level that Holm's correction leaves an undecided claim.
    """

    name: str
    claim: Claim
    left: Measured | None
    right: Measured | None
    effect: float | None
    interval: tuple[float, float] | None
    p: float | None
    adjusted_p: float | None
    p_against: float | None
    adjusted_p_against: float | None
    verdict: ClaimVerdict
    why: str = ""
    more_seeds: int | None = None


@dataclass(frozen=True)
class Ranking:
    """Rows ranked in each column by their means, over the columns in which all have runs; rank 1 is best.

    Attributes:
        value: what is ranked.
        columns: over which.
        average_ranks: by row.
        friedman_p: that all rows are equally good.
        nemenyi_p: by pair of rows, (row, row) in table order.
        critical_difference: of average ranks, Nemenyi at 5 %.
    """

    value: str
    columns: tuple[str, ...]
    average_ranks: Mapping[str, float]
    friedman_p: float
    nemenyi_p: Mapping[tuple[str, str], float]
    critical_difference: float


@dataclass(frozen=True)
class Evidence:
    """All that a page shows.

    Attributes:
        request: the table and what of it is wanted.
        cells: composed.
        runs: those of the wanted seeds, with their states.
        places: by place, for the wanted rows, the wanted columns and the mean, and all values.
        claims: those of which both rows are known.
        rankings: for values of at least three rows and five columns.
        comparable: False on quick scale, stand-in or generated data: then no verdict is given.
        stamps: what a reader must not miss: scale, data, protocol, settings that are not the table's, runs that are
            left out, mixed fidelity, commits, devices or versions.
        damaged: result files that cannot be read, and why.
    """

    request: Request
    cells: tuple[Cell, ...]
    runs: tuple[TableRun, ...]
    places: Mapping[Place, PlaceEvidence]
    claims: tuple[ClaimEvidence, ...]
    rankings: tuple[Ranking, ...]
    comparable: bool
    stamps: tuple[str, ...]
    damaged: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The wanted columns, and the mean over all if the table has one."""
        mean = self.request.table.mean
        return (*self.request.columns, *([mean] if mean else []))

    @property
    def found(self) -> list[Found]:
        """All runs that a number of the page comes from, each once."""
        known: dict[str, Found] = {}
        for evidence in self.places.values():
            for found in evidence.measured.runs if evidence.measured else ():
                known.setdefault(found.result.fingerprint, found)
        return list(known.values())
