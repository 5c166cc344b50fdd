"""What is wrong with a table whose YAML has the right form."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from reattend.config.groups import group_defaults, members
from reattend.errors import nearest

if TYPE_CHECKING:
    from reattend.tables.table import Table


def exists(override: str) -> bool:
    """False for the choice of a group's member that is not there."""
    group, _, member = override.partition("=")
    return group not in group_defaults() or member in members(group) or member == "null"


def mistyped(table: Table, awaited: Collection[str], shown: str) -> Iterator[str]:
    """Where the table chooses a member that is neither there nor `awaited`, and the nearest that is."""
    for place, overrides in _settings(table).items():
        for override in overrides:
            if not exists(override) and override not in awaited:
                group, _, member = override.partition("=")
                known = [*members(group), *(o.removeprefix(f"{group}=") for o in awaited if o.startswith(f"{group}="))]
                hint = nearest(member, known) or f" It has: {', '.join(members(group))}."
                yield f"{shown}.{place}: {override}: {group} has no member '{member}'.{hint}"


def not_of_a_table(overrides: Collection[str]) -> Iterator[str]:
    """Those of a row, column or table that only a command line can have."""
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key == "seed":
            yield f"{override}: a table is run with the seeds 0 to n - 1; how many, says seeds"
        elif key.partition(".")[0] in ("launcher", "outputs", "rerun"):
            yield f"{override}: it is for all runs of a command, and given there"


def _settings(table: Table) -> dict[str, list[str]]:
    places = {"overrides": table.overrides}
    for kind, settings in (("rows", table.rows), ("columns", table.columns)):
        places |= {f"{kind}.{name}.overrides": setting.overrides for name, setting in settings.items()}
    return places


def contradictions(table: Table) -> Iterator[str]:
    """What names a row, column or value that the table does not have, and settings that exclude each other."""
    for place, overrides in _settings(table).items():
        yield from (f"{place}: {told}" for told in not_of_a_table(overrides))
    if table.mean in table.columns:
        yield f"mean: '{table.mean}' is a column already"
    swept = [name for name, row in table.rows.items() if row.at is not None]
    if bool(swept) != bool(table.sweep):
        yield f"sweep: rows have an 'at' where the table says of what, here {', '.join(swept) or 'none'} has one"
    yield from (f"columns.{name}.at: only rows lie on a sweep" for name, c in table.columns.items() if c.at is not None)
    for name, value in table.values.items():
        if value.relative_to is not None:
            yield from _unknown(f"values.{name}.relative_to", value.relative_to, table.rows)
    known_numbers: set[tuple[str, str, str]] = set()
    for group, blocks in (("published", table.published), ("elsewhere", table.elsewhere)):
        for number, block in enumerate(blocks):
            place = f"{group}[{number}]"
            yield from _unknown(f"{place}.value", block.value, table.values)
            for row, columns in block.numbers.items():
                yield from _unknown(f"{place}.numbers", row, table.rows)
                for column, entry in columns.items():
                    yield from _unknown(f"{place}.numbers.{row}", column, table.all_columns)
                    number_of = (block.value, row, column)
                    if isinstance(entry, list) and (len(entry) != 2 or entry[1] < 0):
                        yield f"{place}.numbers.{row}.{column}: a list is [mean, standard deviation], found {entry}"
                    if group == "published":
                        if number_of in known_numbers:
                            yield f"{place}.numbers.{row}.{column}: another block of published has a number there"
                        known_numbers.add(number_of)
    for name, claim in table.claims.items():
        for side, at in (("left", claim.left), ("right", claim.right)):
            path = f"claims.{name}.{side}"
            yield from _unknown(f"{path}.row", at.row, table.rows)
            yield from _unknown(f"{path}.column", at.column, table.all_columns)
            yield from _unknown(f"{path}.value", at.value, table.values)
        if claim.at_least is None and claim.at_most is None:
            yield f"claims.{name}: it needs at_least, at_most or both"
        elif claim.by == "ratio" and any(bound is not None and bound <= 0 for bound in (claim.at_least, claim.at_most)):
            yield f"claims.{name}: the bounds of a ratio must be above 0"
        elif None not in (claim.at_least, claim.at_most) and claim.at_least >= claim.at_most:  # type: ignore[operator]
            yield f"claims.{name}: at_least must be smaller than at_most"


def _unknown(path: str, name: str, known: Sequence[str] | Mapping[str, object]) -> Iterator[str]:
    if name not in known:
        yield f"{path}: the table has no '{name}'.{nearest(name, known)}"
