"""The five sets by name, with the options that choose between their files and readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from reattend.config.binding import convert
from reattend.config.problems import refuse
from reattend.data.lra.by_rule import ListOpsSet, PathfinderSet
from reattend.data.lra.image import ImageSet
from reattend.data.lra.raw import RawSet
from reattend.data.lra.retrieval import RetrievalSet
from reattend.data.lra.text import TextSet
from reattend.data.prepared.standin_root import standin_root
from reattend.errors import ReattendError, nearest

SETS: dict[str, type[RawSet]] = {
    kind.name: kind for kind in (ListOpsSet, TextSet, RetrievalSet, ImageSet, PathfinderSet)
}


def raw_set(dataset: str | None, root: str | Path, *, standin: bool = False, **options: Any) -> RawSet:
    """The set of that name below `<root>/lra`, or its stand-in's in the cache.

    Args:
        dataset: "listops", "text", "retrieval", "image" or "pathfinder".
        root: folder of all data.
        standin: use the stand-in.
        options: of the set; None is the same as not given.

    Raises:
        ReattendError: there is no such set, or it does not take an option or its value.
    """
    problems: list[str] = []
    raw = bound_set(dataset, root, options, problems, standin=standin)
    refuse(problems, next_command(dataset))
    assert raw is not None
    return raw


def bound_set(
    dataset: str | None, root: str | Path, options: Mapping[str, Any], problems: list[str], *, standin: bool = False
) -> RawSet | None:
    """As `raw_set`, with what is wrong with the options added to `problems`; None if anything is.

    Raises:
        ReattendError: there is no such set.
    """
    kind = SETS.get(dataset or "")
    if kind is None:
        raise ReattendError(
            f"There is no Long Range Arena set '{dataset}'.{nearest(dataset or '', SETS)} Sets: {', '.join(SETS)}."
        )
    given = {name: value for name, value in options.items() if value is not None}
    hints = get_type_hints(kind, include_extras=True)
    taken = {field.name for field in fields(kind)} - {"folder", "complete"}
    before, bound = len(problems), {}
    for name, value in given.items():
        if name in taken:
            bound[name] = convert(value, hints[name], f"task.data_options.{name}", problems)
        else:
            told = f" It takes {', '.join(sorted(taken))}." if taken else " It takes none."
            problems.append(f"task.data_options: lra/{dataset} takes no {name}.{nearest(name, taken)}{told}")
    if len(problems) > before:
        return None
    parent = standin_root() if standin else Path(root).expanduser().absolute()
    raw = kind(parent / "lra" / kind.name, not standin, **bound)
    problems += raw.option_problems()
    return raw if len(problems) == before else None


def next_command(dataset: str | None) -> str:
    """What shows a set's options."""
    return f"Options as they are: python train.py task=lra/{dataset} --cfg job --package task.data_options"
