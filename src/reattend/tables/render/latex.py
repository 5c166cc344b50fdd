"""A page's tables for a paper: LaTeX with booktabs, to be read in by \\input."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

from reattend.tables.render.page import Page
from reattend.tables.render.view import SYMBOLS, CellView, Grid

# What a page of the class `article` holds at \\footnotesize: letters beside each other, and lines below a caption.
_LETTERS, _LINES = 88, 44
_GAP = 2

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"\textbar{}",
    "[": "{[}",  # else an optional argument where a line begins
    "]": "{]}",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "√": r"$\surd$",
    "·": r"$\cdot$",
    "Δ": r"$\Delta$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "ε": r"$\epsilon$",
    "η": r"$\eta$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "φ": r"$\varphi$",
    "′": r"$'$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
    "✓": r"$\surd$",
    "✗": r"$\times$",
} | {character: f"\\{character}" for character in "&%$#_"}


def latex(page: Page) -> str:
    """A `table` or more for each grid, and one for the claims; needs the packages booktabs and graphicx."""
    return "\n".join(_lines(page)) + "\n"


def escaped(text: str) -> str:
    """`text` as LaTeX prints it; letters outside Latin-1 that it does not know lose their accent or become "?"."""
    return "".join(_character(character) for character in " ".join(text.split()))


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isascii() or (character.isalpha() and ord(character) < 256):
        return character
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"


def _lines(page: Page) -> Iterator[str]:
    yield r"% \usepackage{booktabs,graphicx}"
    for grid in page.grids:
        yield from _grid(page, grid)
    if page.claims:
        yield from _claims(page)


def _caption(page: Page, told: str) -> str:
    stamp = rf"\textbf{{{escaped(page.stamp)}}} " if page.stamp else ""
    return rf"\caption{{{stamp}{escaped(told)}}}\medskip"


def _grid(page: Page, grid: Grid) -> Iterator[str]:
    """One `table`, or several where one would be wider or longer than a page."""
    notes = [*page.stamps, *_marks(grid), *(f"{head.label}: {head.note}" for head, _ in grid.rows if head.note)]
    sentences = " ".join(told.rstrip(".") + "." for told in (page.about, *notes, page.part) if told)
    whole = f"{page.table.title}: {grid.title}. {sentences}"
    parts = [(rows, columns) for rows in _row_parts(grid) for columns in _column_parts(grid)]
    for number, (rows, columns) in enumerate(parts, start=1):
        of = f" Part {number} of {len(parts)}." if len(parts) > 1 else ""
        told = f"{page.table.title}: {grid.title}, continued." if number > 1 else whole
        yield from _part(_caption(page, told + of), grid, rows, columns)


def _part(caption: str, grid: Grid, rows: range, columns: range) -> Iterator[str]:
    yield r"\begin{table}"
    yield r"\centering"
    yield caption
    yield r"\footnotesize\setlength{\tabcolsep}{3pt}"
    shrunk = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}"  # only what is too wide all the same
    yield rf"{shrunk}{{\begin{{tabular}}{{l{'r' * len(columns)}}}"
    yield r"\toprule"
    yield " & ".join(["", *(escaped(grid.columns[column].label) for column in columns)]) + r" \\"
    yield r"\midrule"
    for row in rows:
        if row != rows.start:
            yield r"\addlinespace"
        head, cells = grid.rows[row]
        yield from _row(head.label, tuple(cells[column] for column in columns))
    yield r"\bottomrule"
    yield r"\end{tabular}}"
    yield r"\end{table}"


def _column_parts(grid: Grid) -> list[range]:
    """Columns that stand beside each other at a readable size."""
    names = max((len(head.label) for head, _ in grid.rows), default=0)
    widths = [
        _GAP + max(len(head.label), *(len(text) for _, cells in grid.rows for text in _texts(cells[place])))
        for place, head in enumerate(grid.columns)
    ]
    return _parts(widths, _LETTERS - max(names, len("difference")))


def _row_parts(grid: Grid) -> list[range]:
    """Rows that stand below each other on a page, under a caption."""
    return _parts([1 + sum(map(any, zip(*map(_texts, cells), strict=True))) for _, cells in grid.rows], _LINES)


def _parts(sizes: Sequence[int], room: int) -> list[range]:
    """Neighbours that have room together; at least one, however large it is."""
    starts = [0]
    for place in range(1, len(sizes)):
        if sum(sizes[starts[-1] : place + 1]) > room:
            starts.append(place)
    return [range(start, end) for start, end in pairwise([*starts, len(sizes)])]


def _texts(cell: CellView) -> tuple[str, ...]:
    """The lines of a cell as they are printed, "" where there is none."""
    shown = "" if cell.verdict in ("", "not compared") else f"{SYMBOLS[cell.verdict]} {cell.verdict}"
    return cell.ours, cell.published, cell.ratio, cell.difference, shown


def _row(name: str, cells: tuple[CellView, ...]) -> Iterator[str]:
    told = (escaped(name), *(rf"\quad {line}" for line in ("published", "ratio", "difference", "verdict")))
    for place, (line, texts) in enumerate(zip(told, zip(*map(_texts, cells), strict=True), strict=True)):
        if place == 0 or any(texts):
            entries = [_published(cell) for cell in cells] if place == 1 else map(escaped, texts)
            yield " & ".join([line, *entries]) + r" \\"


def _published(cell: CellView) -> str:
    if not cell.published:
        return ""
    mark = {"unconfirmed": r"$^{\dagger}$", "filled in": r"$^{\ddagger}$"}.get(cell.mark, "")
    return escaped(cell.published) + mark


def _marks(grid: Grid) -> Iterator[str]:
    marks = {cell.mark for _, cells in grid.rows for cell in cells}
    if "unconfirmed" in marks:
        yield "A dagger marks published numbers that were not read in a source"
    if "filled in" in marks:
        yield "A double dagger marks published numbers that were filled in"


def _claims(page: Page) -> Iterator[str]:
    yield r"\begin{table}"
    yield r"\centering"
    yield _caption(page, f"{page.table.title}: claims. Welch's test, p after Holm's correction.")
    yield r"{\small"
    yield r"\begin{tabular}{p{0.28\textwidth}rrl}"
    yield r"\toprule"
    yield r"statement & effect {[}90\,\% interval{]} & adjusted $p$ & verdict \\"
    yield r"\midrule"
    for place, claim in enumerate(page.claims):
        if place:
            yield r"\addlinespace"
        entries = (claim.text, claim.effect, claim.p, f"{SYMBOLS[claim.verdict]} {claim.verdict}")
        yield r"\raggedright " + " & ".join(map(escaped, entries)) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}}"
    yield r"\end{table}"
