"""Which rows of a page are the best of several trials, and on what they were chosen."""

from __future__ import annotations

from collections.abc import Iterator

from reattend.search.best import Best, bests_of
from reattend.tables.evidence import Evidence


def search_note(evidence: Evidence, row: str) -> str:
    """Of how many trials a row is the best, and whether the seed that these had is in its means; "" without a search.

    Raises:
        ReattendError: a file of a search is missing, or not one.
    """
    return "; ".join(_note(evidence, best) for best in _searches(evidence, row))


def searches(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Each row that has cells on the page, with what was searched and found for it; nothing if no row was searched.

    Raises:
        ReattendError: as of `search_note`.
    """
    known = {row: list(_searches(evidence, row)) for row in evidence.request.rows}
    if any(known.values()):
        for row, bests in known.items():
            yield row, "; ".join(map(_whole, bests)) or "not searched"


def trials(evidence: Evidence) -> set[int]:
    """How many trials rows are the best of, 0 for those that were not searched; rows should have equally many."""
    return {sum(best.trials for best in _searches(evidence, row)) for row in evidence.request.rows}


def _searches(evidence: Evidence, row: str) -> list[Best]:
    found: list[Best] = []
    for cell in evidence.cells:
        if cell.row == row and cell.config is not None:
            found += [best for best in bests_of(cell.overrides) if best not in found]
    return found


def _note(evidence: Evidence, best: Best) -> str:
    chosen = f"; its means have seed {best.seed} in them, on which it was chosen"
    return f"{best}{chosen if best.seed in evidence.request.seeds else ''}"


def _whole(best: Best) -> str:
    searched = ", ".join(f"{key} in {span}" for key, span in best.space.items())
    return f"{best}, {searched}: {', '.join(best.overrides[-len(best.space) :])} with {best.metric} {best.value:.4g}"
