"""What a reader of a page must not miss: how its runs differ from the paper's, the table's and each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reattend.config.groups import group_defaults
from reattend.runs.result import Result
from reattend.tables.request import Request
from reattend.tables.results import Found

# What does not change a number.
_SAME_NUMBERS = ("trainer", "logger", "launcher", "compile", "rerun", "outputs", "data.root")
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
    own = [told for told in deviations(request.extra) if told not in request.table.overrides]
    own = [told for told in own if told.partition("=")[0] not in _OF_THEIR_OWN]
    if own:
        yield f"not the table's own settings: {', '.join(own)}. Verdicts are on these runs, not on the paper's recipe."
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
        yield "Pathfinder is generated here by a rule of its own: not comparable with published numbers."
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


def is_generated(data_options: Mapping[str, Any]) -> bool:
    """Whether data follows the original's rule in kind only, as Pathfinder's, which is not all public."""
    return data_options.get("images") == "generated"


def deviations(extra: Sequence[str]) -> Iterator[str]:
    """Those of a command line's overrides that change what is computed; a group's default does not."""
    defaults = group_defaults()
    for override in extra:
        key, _, setting = override.lstrip("+~").partition("=")
        same = any(key == ignored or key.startswith(f"{ignored}.") for ignored in _SAME_NUMBERS)
        if (same and key != "trainer.precision") or defaults.get(key) == setting:
            continue
        yield override


def on_other_data(runs: Sequence[Found]) -> str:
    """How many runs are on which data, such as "3 runs on other data (checksum 0123456789ab)"."""
    counts = Counter(run.checksum[:_SHOWN_DIGITS] for run in runs)
    shown = ", ".join(counts)
    several = "s" if len(counts) > 1 else ""
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''} on other data (checksum{several} {shown})"
