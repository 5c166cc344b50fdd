"""A page as Markdown, tables in GitHub's form; figures are in the HTML file only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from reattend.tables.render.page import CLAIM_METHOD, METHOD, Page
from reattend.tables.render.view import SYMBOLS, CellView, Head


def markdown(page: Page) -> str:
    """The page; the first line is the stamp if it is not to be compared."""
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    if page.stamp:
        yield f"**{_text(page.stamp)}**\n"
    yield f"# {_text(page.table.title)}\n"
    yield f"{_text(page.about)}\n\n{_text(' '.join(filter(None, (page.part, page.summary))))}\n"
    yield from _list(page.stamps)
    for grid in page.grids:
        yield f"\n## {_text(grid.title)}\n"
        heads = ["row", *(head.label for head in grid.columns)]
        rows = [[_head(head), *map(_cell, cells)] for head, cells in grid.rows]
        yield from _table(heads, rows)
        yield from _list(grid.notes)
    yield ""
    yield from _list([*page.value_notes, *([] if page.stamp else [METHOD]), *page.table.footnotes])
    if page.table.claims:
        yield "\n## Claims\n"
        if page.claims:
            yield from _table(
                ["statement", "effect [90 % interval]", "adjusted p", "verdict"],
                [
                    [
                        f"{_text(claim.text)}<br>{_text(claim.bounds)}; {_text(claim.source)}",
                        _text(claim.effect),
                        _text(claim.p),
                        "<br>".join(
                            _text(told)
                            for told in (f"{SYMBOLS[claim.verdict]} {claim.verdict}", claim.more, claim.why)
                            if told
                        ),
                    ]
                    for claim in page.claims
                ],
            )
            yield f"\n{CLAIM_METHOD}"
        else:
            yield page.no_claims
    for ranking in page.rankings:
        yield f"\n## Ranks: {_text(ranking.title)}\n\n{_text(ranking.told)}\n"
        yield from _table(["row", "rank", *ranking.names], [[*map(_text, line)] for line in ranking.lines])
    if page.lacking or page.damaged:
        yield "\n## Runs that are missing\n"
        if page.fill:
            yield f"All of them that can be run:\n\n```bash\n{page.fill}\n```\n"
        yield from _list(page.damaged)
        for runs in page.lacking:
            reason = f": {_text(runs.reason)}" if runs.reason else ""
            yield f"- {runs.count} {runs.state}: {_text(runs.cells)}{reason}"
            if runs.command:
                yield f"  `{runs.command}`"
    yield "\n## Sources of the published numbers\n"
    yield from _list(page.sources or ["No published number of these cells is known."])
    yield "\n## Provenance\n"
    for fact in page.facts:
        mixed = "⚠ mixed: " if fact.mixed and len(fact.values) > 1 else ""
        yield f"- {mixed}{_text(fact.name)}: {'; '.join(map(_text, fact.values))}"
    yield f"\nThis page again:\n\n```bash\n{page.again}\n```"
    if page.appendix:
        yield "\n## Every run\n"
        rows = [[*map(_text, line), f"[{_text(path)}](<{path}>)"] for line, path in page.appendix]
        yield from _table([*page.appendix_head, "result file"], rows, texts=(len(page.appendix_head),))


def _head(head: Head) -> str:
    return f"{_text(head.label)}<br>{_text(head.note)}" if head.note else _text(head.label)


def _cell(cell: CellView) -> str:
    published = f"paper {cell.published}{f' ({cell.mark})' if cell.mark else ''}" if cell.published else ""
    verdict = f"{SYMBOLS[cell.verdict]} {cell.verdict}" if cell.verdict not in ("", "not compared") else ""
    difference = f"Δ {cell.difference}" if cell.difference else ""
    ours = f"**{_text(cell.ours)}**" if cell.is_measured else _text(cell.ours)
    others = (published, cell.ratio, difference, verdict, cell.more)
    return "<br>".join([ours, *(_text(told) for told in others if told)])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = ()) -> Iterator[str]:
    yield f"| {' | '.join(map(_text, heads))} |"
    yield f"| {' | '.join('---' if place in (0, *texts) else '---:' for place in range(len(heads)))} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _list(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"- {_text(line)}"


def _text(text: str) -> str:
    """`text` as itself: what Markdown would take for its own is escaped, a line break becomes a space."""
    return re.sub(r"([\\`*_|<>#\[\]~])", r"\\\1", " ".join(text.split()))
