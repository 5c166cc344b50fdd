"""A page's tables for a paper: LaTeX with booktabs, to be read in by \\input."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from reattend.tables.render.page import Page
from reattend.tables.render.view import SYMBOLS, CellView, Grid

_WIDEST = 5  # columns; more are scaled down to the text's width

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
    """One `table` for each grid, and one for the claims; needs the packages booktabs and graphicx."""
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
    notes = [*page.stamps, *_marks(grid)]
    told = (
        f"{page.table.title}: {grid.title}. {page.table.paper}. Ours are mean ± sample standard deviation (seeds); "
        f"published: {page.table.average}. {' '.join(note.rstrip('.') + '.' for note in notes)}"
    )
    is_wide = len(grid.columns) > _WIDEST
    yield r"\begin{table}"
    yield r"\centering"
    yield _caption(page, told)
    yield r"\resizebox{\textwidth}{!}{%" if is_wide else r"{\small"
    yield rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}"
    yield r"\toprule"
    yield " & ".join(["", *(escaped(head.label) for head in grid.columns)]) + r" \\"
    yield r"\midrule"
    for place, (head, cells) in enumerate(grid.rows):
        if place:
            yield r"\addlinespace"
        yield from _row(head.label, cells)
    yield r"\bottomrule"
    yield r"\end{tabular}}"
    yield r"\end{table}"


def _row(name: str, cells: tuple[CellView, ...]) -> Iterator[str]:
    lines: list[tuple[str, list[str]]] = [
        (escaped(name), [escaped(cell.ours) for cell in cells]),
        ("published", [_published(cell) for cell in cells]),
        ("ratio", [escaped(cell.ratio) for cell in cells]),
        ("difference", [escaped(cell.difference) for cell in cells]),
        ("verdict", [_verdict(cell) for cell in cells]),
    ]
    for place, (told, entries) in enumerate(lines):
        if place == 0 or any(entries):
            indent = r"\quad " if place else ""
            yield " & ".join([indent + told, *entries]) + r" \\"


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


def _verdict(cell: CellView) -> str:
    return "" if cell.verdict in ("", "not compared") else escaped(f"{SYMBOLS[cell.verdict]} {cell.verdict}")


def _claims(page: Page) -> Iterator[str]:
    yield r"\begin{table}"
    yield r"\centering"
    yield _caption(page, f"{page.table.title}: claims. Welch's test, p after Holm's correction.")
    yield r"{\small"
    yield r"\begin{tabular}{p{0.28\textwidth}rrl}"
    yield r"\toprule"
    yield r"statement & effect {[}95\,\% interval{]} & adjusted $p$ & verdict \\"
    yield r"\midrule"
    for claim in page.claims:
        entries = (claim.text, claim.effect, claim.p, f"{SYMBOLS[claim.verdict]} {claim.verdict}")
        yield " & ".join(map(escaped, entries)) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}}"
    yield r"\end{table}"
