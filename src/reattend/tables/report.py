"""The page of evidence of a table: `scripts/report.py`, and what `scripts/reproduce.py` ends with."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from reattend.config.groups import group_defaults
from reattend.errors import ReattendError
from reattend.runs.files import write_bytes
from reattend.tables.collect import collect_evidence
from reattend.tables.evidence import Evidence
from reattend.tables.published import fill_in
from reattend.tables.render import view
from reattend.tables.render.commands import reproduce_command, selection
from reattend.tables.render.html import html
from reattend.tables.render.latex import latex
from reattend.tables.render.markdown import markdown
from reattend.tables.render.page import Page, page
from reattend.tables.render.plots import figures
from reattend.tables.request import CHOICE, KEYS, Request, read_request
from reattend.tables.results import EXPORTED
from reattend.tables.stamps import deviations
from reattend.tables.table import Place

OPTIONS = KEYS["scripts/report.py"]

USAGE = f"""\
python scripts/report.py table=NAME [key=value ...]      the page of a table from the runs that are finished
{CHOICE}
  published=FILE.csv            published numbers that this project could not read, from a file of one's own
  to=FOLDER                     where the page goes"""

_LONGEST_NAME = 100


def main(arguments: Sequence[str]) -> None:
    """Writes the page; `to=FOLDER` and `published=FILE.csv` are the command's own keys."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return
    # A user's own mixer lies beside the command, not in the environment.
    sys.path.insert(0, os.getcwd())
    try:
        write(read_request(arguments, OPTIONS))
    except ReattendError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def write(request: Request) -> list[Path]:
    """Writes what the finished runs say of a table as HTML, Markdown and LaTeX, and prints a short form.

    Returns:
        the three files, in the folder `to`, or by the table's name in <outputs>/reports.

    Raises:
        ReattendError: the file `published` cannot be used, no cell can be composed, there are no runs at all, or a page
            cannot be written.
    """
    if "published" in request.options:
        table = fill_in(request.table, Path(request.options["published"]))
        request = dataclasses.replace(request, table=table)
    evidence = collect_evidence(request)
    _check(evidence)
    folder = Path(request.options["to"]) if "to" in request.options else report_folder(request, _outputs(evidence))
    made = page(evidence, folder)
    contents = {
        "report.html": html(made, figures(evidence)),
        "report.md": markdown(made),
        "table.tex": latex(made),
    }
    for name, content in contents.items():
        write_bytes(folder / name, content.encode())
    paths = [folder / name for name in contents]
    _print(evidence, made, paths)
    return paths


def report_folder(request: Request, outputs: Path) -> Path:
    """<outputs>/reports/<table>, with what the command line asks for otherwise: "-quick", "-columns=JapaneseVowels"."""
    name = Path(request.name).stem if request.name.endswith((".yaml", ".yml")) else request.name
    told = [*selection(request), *map(_setting, deviations(request))]
    # A comma becomes "+", as "_" stands in names: rows=bn,sh is not rows=bn_sh.
    suffix = "".join("-" + re.sub(r"[^\w.=+-]+", "_", word.replace(",", "+")) for word in told)
    if len(suffix) > _LONGEST_NAME:
        suffix = f"-{hashlib.sha256(suffix.encode()).hexdigest()[:12]}"
    return outputs / "reports" / (name + suffix)


def _outputs(evidence: Evidence) -> Path:
    return next(Path(cell.config.outputs) for cell in evidence.cells if cell.config)


def _setting(override: str) -> str:
    """A choice of a group is known by the member's name."""
    key, _, setting = override.lstrip("+~").partition("=")
    return setting if key in group_defaults() else override


def _check(evidence: Evidence) -> None:
    """Refuses a page that could say nothing, which would take the place of an earlier one."""
    if not any(cell.config for cell in evidence.cells):
        problems = "\n".join(dict.fromkeys(f"  {cell.problem}" for cell in evidence.cells))
        raise ReattendError(f"No page is written, as no cell of it can be composed:\n{problems}")
    runs = _outputs(evidence) / "runs"
    if not evidence.found and not runs.is_dir():
        raise ReattendError(
            f"No page is written, as there are no runs in {runs}, and none of these in {EXPORTED}. "
            f"This runs them: {reproduce_command(evidence.request)}"
        )


def _print(evidence: Evidence, made: Page, paths: Sequence[Path]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    if made.stamp:
        console.print(made.stamp, style="bold", markup=False, soft_wrap=True)
    console.print(_short(evidence, made) if evidence.found else f"{made.table.title}: no number yet.")
    for claim in made.claims:
        effect = "" if claim.effect == "–" else f" {claim.effect}"
        why = "; ".join(told for told in (claim.why, claim.more) if told)
        told = f"{claim.verdict}:{effect} {claim.text}{f' ({why})' if why else ''}"
        console.print(told, markup=False, soft_wrap=True)
    notes = {f"{head.label}: {head.note}": None for grid in made.grids for head, _ in grid.rows if head.note}
    failed = [f"failed: {runs.cells}: {runs.reason}" for runs in made.lacking if runs.state == "failed"]
    for told in (*notes, *made.stamps, *evidence.damaged, *failed, made.part, made.summary):
        if told:
            console.print(told, markup=False, soft_wrap=True)
    if made.fill:
        console.print(f"What is missing: {made.fill}", markup=False, soft_wrap=True)
    for path in paths:
        console.print(str(path), markup=False, soft_wrap=True)


def _short(evidence: Evidence, made: Page) -> RichTable:
    """Every number that there is, a line each, by column."""
    shown = RichTable(
        title="\n".join(filter(None, (made.table.title, made.table.paper))),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    shown.add_column("row", no_wrap=True)
    shown.add_column("column")
    shown.add_column("value")
    shown.add_column("mean ± std (n)", justify="right", no_wrap=True)
    shown.add_column("published", justify="right")
    if not made.stamp:
        shown.add_column("difference", justify="right")
        shown.add_column("verdict")
    for column in evidence.columns:
        for name, value in evidence.request.table.values.items():
            for row in evidence.request.rows:
                place = Place(row, column, name)
                if evidence.places[place].measured is None:
                    continue
                cell = view.cell(evidence, evidence.places[place])
                published = f"{cell.published}{f' ({cell.mark})' if cell.mark else ''}"
                line = [view.row_label(evidence, row), view.column_label(evidence, column)]
                line += [f"{view.label(name, value)}{f' ({value.unit})' if value.unit else ''}", cell.ours, published]
                if not made.stamp:
                    line += [cell.difference, cell.verdict if cell.verdict != "not compared" else ""]
                shown.add_row(*line)
            shown.add_section()
    return shown
