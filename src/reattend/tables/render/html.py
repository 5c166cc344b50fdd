"""A page as one HTML file that needs nothing else."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from reattend.tables.render.page import CLAIM_METHOD, METHOD, Page
from reattend.tables.render.plots import Figures, apart
from reattend.tables.render.view import SYMBOLS


def html(page: Page, figures: Figures) -> str:
    """The page with its figures; all text is escaped."""
    environment = Environment(
        loader=PackageLoader("reattend.tables", "render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.j2")
    return template.render(
        **vars(page), figures=figures, svg=_svg, symbols=SYMBOLS, method=METHOD, claim_method=CLAIM_METHOD
    )


def _svg(drawing: str, number: int, title: str) -> Markup:
    """A drawing for the page, named for those who cannot see it."""
    return Markup(apart(drawing, number).replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1))
