"""What a reader of a page must not miss: how its runs differ from the paper's, the table's and each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from reattend.config.groups import group_defaults
from reattend.runs.result import Result
from reattend.runs.stamps import GENERATED, changes_numbers, is_generated, override_key
from reattend.tables.cells import cell_overrides, compose_cell
from reattend.tables.request import Request
from reattend.tables.results import Found

_SHOWN_DIGITS = 12
_OF_THEIR_OWN = ("scale", "data", "protocol")  # each has a stamp that says more


def stamps(request: Request, results: Sequence[Result], left_out: Sequence[Found]) -> Iterator[str]:
    """One line each, the weightiest first.

    Args:
        request: what the page is of.
        results: that its numbers are of.
        left_out: runs of its cells that are on other data than the others.
    """
    if any(result.scale == "quick" for result in results):
        yield "scale=quick: minutes instead of the published recipe. Not comparable with published numbers."
    if any(result.data == "standin" for result in results):
        yield "data=standin: generated data. Not comparable with anything published."
    own = [told for told in deviations(request) if told.partition("=")[0] not in _OF_THEIR_OWN]
    if own:
        judged = not any(result.scale == "quick" or result.data == "standin" for result in results)
        verdicts = " Verdicts are on these runs, not on the paper's recipe." if judged else ""
        yield f"not the table's own settings: {', '.join(own)}.{verdicts}"
    selects = any(value.of_selected_epoch for value in request.table.values.values())
    if selects and any(result.config["protocol"]["selection"] == "test" for result in results):
        yield "protocol=published: the epoch is selected on test, as the followed code does; these are upper bounds."
    if selects and any(
        result.protocol == "strict" and result.config["task"].get("selection", "test") == "test" for result in results
    ):
        yield (
            "protocol=strict: the epoch is selected on validation, but those of the published numbers on test, as the "
            "followed code does: ours may be lower for that reason alone."
        )
    if left_out:
        yield f"{on_other_data(left_out)} left out"
    if any(is_generated(result.config["task"].get("data_options", {})) for result in results):
        yield GENERATED
    for name, values in (
        ("fidelity", {str(result.fidelity["name"]) for result in results}),
        ("commits", {result.git_commit or "unknown" for result in results}),
        ("devices", {result.device for result in results}),
        ("versions of torch", {result.versions.get("torch", "unknown") for result in results}),
    ):
        if len(values) > 1:
            yield f"mixed {name}: {', '.join(sorted(values))}"
    if any((result.git_commit or "").endswith("+changes") for result in results):
        yield "some runs are of code with changes that are not committed"


def deviations(request: Request) -> Iterator[str]:
    """Those of a command line's overrides that change what is computed; what a table says anyway does not."""
    defaults = group_defaults()
    for override in request.extra:
        if not changes_numbers(override):
            continue
        is_choice = override_key(override) in defaults and "," not in override.partition("=")[2]
        if override not in request.table.overrides and not (is_choice and not _changes(request, override)):
            yield override


def _changes(request: Request, override: str) -> bool:
    """Whether a cell is another one with `override`: its task, row or column may choose other than the default."""
    others = [other for other in request.extra if other != override]
    for row in request.rows:
        for column in request.columns:
            with_it, without = (
                compose_cell(row, column, cell_overrides(request.table, row, column, extra)).config
                for extra in (request.extra, others)
            )
            if with_it != without:
                return True
    return False


def on_other_data(runs: Sequence[Found]) -> str:
    """How many runs are on which data, such as "3 runs on other data (checksum 0123456789ab)"."""
    counts = Counter(run.checksum[:_SHOWN_DIGITS] for run in runs)
    shown = ", ".join(counts)
    several = "s" if len(counts) > 1 else ""
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''} on other data (checksum{several} {shown})"
