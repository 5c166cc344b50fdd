"""The five sets by name, with the options that choose between their files and readings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from reattend.data.lra.by_rule import ListOpsSet, PathfinderSet
from reattend.data.lra.image import ImageSet
from reattend.data.lra.raw import RawSet
from reattend.data.lra.retrieval import RetrievalSet
from reattend.data.lra.standin import standin_root
from reattend.data.lra.text import TextSet
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
        ReattendError: there is no such set, or it does not take an option.
    """
    kind = SETS.get(dataset or "")
    if kind is None:
        raise ReattendError(
            f"There is no Long Range Arena set '{dataset}'.{nearest(dataset or '', SETS)} Sets: {', '.join(SETS)}."
        )
    given = {name: value for name, value in options.items() if value is not None}
    taken = {field.name for field in fields(kind)} - {"folder", "complete"}
    for name in given:
        if name not in taken:
            told = f" It takes {', '.join(sorted(taken))}." if taken else " It takes none."
            raise ReattendError(f"task.data_options: lra/{dataset} takes no {name}.{nearest(name, taken)}{told}")
    parent = standin_root() if standin else Path(root).expanduser().absolute()
    return kind(parent / "lra" / kind.name, not standin, **given)
