"""All that a page says, gathered once for its three files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from reattend.tables.evidence import Evidence, Ranking
from reattend.tables.ladder import base_rows
from reattend.tables.render import provenance, view
from reattend.tables.render.commands import report_command, reproduce_command
from reattend.tables.render.numbers import plain, probability, seeds
from reattend.tables.request import Request
from reattend.tables.runs import State
from reattend.tables.table import Table, load_table
from reattend.tables.worklist import failures

METHOD = (
    "Δ is ours minus the paper's, or for values compared as ratio ours divided by the paper's, with its 90 % "
    "confidence interval (Welch; ratios on the log scale). Reproduced: the interval lies within the margin, with what "
    "rounding of the printed numbers may hide (two one-sided tests at 5 %); different: it lies outside; undecided: "
    "neither. No verdict below three seeds, of the baseline too. A published number without a known spread and number "
    "of runs counts as exact, so a verdict against one run of the paper's is one on that run. More seeds: about as "
    "many as decide with a power of 80 %, were the true effect the one seen."
)
CLAIM_METHOD = (
    "Welch's test against the claim's own bounds, paired by seed where both sides are of the same runs; p after Holm's "
    "correction over the claims of this page. Supported: the claim's p is below 5 %; contradicted: that of its "
    "opposite is. The interval is the one that one-sided tests at 5 % amount to, 90 %, before the correction."
)


@dataclass(frozen=True)
class ClaimView:
    """A claim as text."""

    text: str
    bounds: str
    source: str
    effect: str
    p: str
    verdict: str
    why: str
    more: str


@dataclass(frozen=True)
class RankingView:
    """A ranking as text; `lines` are row, average rank, and p against each of `names`."""

    title: str
    told: str
    names: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Page:
    """What all files of a page say.

    `part` says what of the table it shows, "" if all; `fill` runs what can be run of `lacking`, `again` makes the page
    again.
    """

    table: Table
    stamp: str
    stamps: tuple[str, ...]
    about: str
    part: str
    summary: str
    grids: tuple[view.Grid, ...]
    value_notes: tuple[str, ...]
    claims: tuple[ClaimView, ...]
    no_claims: str
    rankings: tuple[RankingView, ...]
    lacking: tuple[provenance.Lacking, ...]
    damaged: tuple[str, ...]
    fill: str
    sources: tuple[str, ...]
    facts: tuple[provenance.Fact, ...]
    again: str
    appendix_head: tuple[str, ...]
    appendix: tuple[tuple[list[str], str], ...]


def page(evidence: Evidence, folder: Path) -> Page:
    """The page of `evidence` that lies in `folder`."""
    request = evidence.request
    open_runs = any(run.state not in ("done", "blocked") for run in evidence.runs)
    return Page(
        table=request.table,
        stamp=view.not_comparable(evidence),
        stamps=evidence.stamps,
        about=about(request.table),
        part=part(request),
        summary=summary(evidence),
        grids=tuple(view.grids(evidence)),
        value_notes=tuple(view.value_notes(evidence)),
        claims=tuple(_claims(evidence)),
        no_claims=(
            "Both rows of none of the table's claims are on this page."
            if evidence.comparable
            else "Claims are not judged on these runs."
        ),
        rankings=tuple(_ranking(evidence, ranking) for ranking in evidence.rankings),
        lacking=tuple(provenance.lacking(evidence)),
        damaged=evidence.damaged,
        fill=reproduce_command(request, _retries(evidence)) if open_runs else "",
        sources=tuple(view.sources(evidence)),
        facts=tuple(provenance.facts(evidence)),
        again=report_command(request),
        appendix_head=tuple(provenance.appendix_head(evidence)),
        appendix=tuple(provenance.appendix(evidence, folder)),
    )


def about(table: Table) -> str:
    """Whose numbers stand on the page, and of what they are means."""
    whose = [f"{table.paper}."] if table.paper else []
    whose += [f"Published: {table.average}."] if table.average else []
    return " ".join([*whose, "Ours: mean ± sample standard deviation (number of seeds)."])


def part(request: Request) -> str:
    """How much of the table is wanted, such as "2 of 4 rows, 1 of 10 columns"; "" if it is all of it."""
    known = load_table(request.name)
    rows = {row: request.table.rows[row] for row in request.rows}
    is_ladder = request.options.get("ladder") == "true"
    chosen = base_rows(rows) if is_ladder else rows
    told = []
    for name, wanted, all_of_them in (
        ("rows", list(chosen), list(known.rows)),
        ("columns", list(request.columns), list(known.columns)),
    ):
        inside = [one for one in wanted if one in all_of_them]
        if len(inside) < len(all_of_them):
            told.append(f"{len(inside)} of {len(all_of_them)} {name}")
        if len(inside) < len(wanted):
            told.append(f"{len(wanted) - len(inside)} added")
    if is_ladder:
        told.append("as a fidelity ladder")
    if len(request.seeds) != known.seeds:
        told.append(f"{len(request.seeds)} instead of {known.seeds} seeds")
    return f"Of the table: {', '.join(told)}." if told else ""


def summary(evidence: Evidence) -> str:
    """Runs by state, then verdicts of places and of claims, counted."""
    states = Counter(run.state for run in evidence.runs)
    parts = [f"{states['done']} of {len(evidence.runs)} runs done"]
    others: tuple[State, ...] = ("running", "interrupted", "failed", "to do", "blocked")
    parts += [f"{states[state]} {state}" for state in others if states[state]]
    told = ", ".join(parts) + "."
    cells = Counter(known.verdict for known in evidence.places.values() if known.verdict != "not compared")
    claims = Counter(claim.verdict for claim in evidence.claims)
    for name, counts in (("Numbers", cells), ("Claims", claims)):
        if counts:
            told += f" {name}: {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}."
    return told


def _retries(evidence: Evidence) -> int:
    """So many that every failed run is tried once more."""
    failed = [run.folder for run in evidence.runs if run.state == "failed" and run.folder is not None]
    return max((len(failures(folder)) for folder in failed), default=0)


def _claims(evidence: Evidence) -> list[ClaimView]:
    return [
        ClaimView(
            known.claim.text,
            view.bounds(evidence, known),
            f"{known.claim.source} ({known.claim.certainty})",
            view.effect(known, evidence.request.table.values[known.claim.left.value]),
            probability(known.adjusted_p_against if known.verdict == "contradicted" else known.adjusted_p),
            known.verdict,
            known.why,
            seeds(known.more_seeds) if known.verdict == "undecided" else "",
        )
        for known in evidence.claims
    ]


def _ranking(evidence: Evidence, ranking: Ranking) -> RankingView:
    value = evidence.request.table.values[ranking.value]
    rows = list(ranking.average_ranks)
    both = {**ranking.nemenyi_p} | {(second, first): p for (first, second), p in ranking.nemenyi_p.items()}
    lines = tuple(
        (
            view.row_label(evidence, row),
            plain(ranking.average_ranks[row], 2),
            *(probability(both.get((row, other))) for other in rows),
        )
        for row in rows
    )
    told = (
        f"Over {len(ranking.columns)} columns, 1 is best. Friedman's test that all rows are equally good: p "
        f"{_equals(probability(ranking.friedman_p))}; average ranks that differ by more than "
        f"{plain(ranking.critical_difference, 2)} differ at 5 % (Nemenyi)."
    )
    return RankingView(
        view.label(ranking.value, value), told, tuple(view.row_label(evidence, row) for row in rows), lines
    )


def _equals(p: str) -> str:
    return p if p.startswith("<") else f"= {p}"
