"""What there is to choose from: the command `scripts/list.py`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from reattend.config.binding import UNREADABLE, bind_dataclass, unbind
from reattend.config.compose import compose
from reattend.config.groups import all_groups, members
from reattend.config.instantiate import attention_factory
from reattend.config.loader import load_file
from reattend.config.paths import config_dir
from reattend.config.problems import ConfigError
from reattend.config.read import read
from reattend.config.resolve import attention_within, plain_attentions
from reattend.config.schema import AttentionConfig
from reattend.errors import ReattendError, nearest

SHOWN = ("attention", "task", "backbone", "table")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the groups named in `arguments`, or those that matter most; returns the exit code."""
    wanted = list(sys.argv[1:] if arguments is None else arguments)
    known = all_groups()
    if {"-h", "--help"} & set(wanted):
        print(f"python scripts/list.py [GROUP ...]   what a command line can choose: {', '.join(known)}")
        return 0
    try:
        for group in wanted:
            if group not in known:
                raise ConfigError(f"there is no group '{group}'.{nearest(group, known)} Groups: {', '.join(known)}")
        for group in wanted or [group for group in SHOWN if group in known]:
            show(group, rows(group))
    except ReattendError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def rows(group: str) -> list[dict[str, str]]:
    """One row for each member: its name, one line about it, and for an attention what it can do."""
    if group == "attention":
        return _attention_rows()
    return [{"name": name, "summary": _summary(config_dir() / group / f"{name}.yaml")} for name in members(group)]


def show(group: str, table: Sequence[Mapping[str, str]]) -> None:
    """Prints the rows: as a table on a terminal, elsewhere as one line each with tabs between."""
    console = Console()
    columns = list(table[0]) if table else []
    if console.is_terminal:
        rich_table = Table(*columns, title=group, title_justify="left")
        for row in table:
            rich_table.add_row(*row.values())
        console.print(rich_table)
        return
    print(group)
    for row in table:
        print("\t".join(["", *row.values()]))


def _attention_rows() -> list[dict[str, str]]:
    from reattend.attention import Capabilities

    names = [field.name for field in fields(Capabilities) if field.name not in ("reasons", "time_exponent")]
    tree: dict[str, Any] = unbind(read(compose()))
    found = []
    for name in members("attention"):
        summary = _summary(config_dir() / "attention" / f"{name}.yaml")
        if name in plain_attentions():
            problems: list[str] = []
            attention = bind_dataclass(AttentionConfig, attention_within(tree, name, problems), "attention", problems)
            factory = None if attention is UNREADABLE else attention_factory(attention, problems)
            able = [n for n in names if factory is not None and getattr(factory.capabilities, n)]
            if factory is not None:
                able.append(f"time N^{factory.capabilities.time_exponent:g}")
            can = ", ".join(n.replace("_", " ") for n in able) or "; ".join(problems)
        else:
            can = "what its mixers can"
        found.append({"name": name, "summary": summary, "capabilities": can})
    return found


def _summary(path: Path) -> str:
    """`summary` or `title` of the YAML file, or the comment on top of it."""
    values = load_file(path)
    # A task's file is written for the package _global_: its own keys stand below its group.
    for holder in [values, *values.values()]:
        if isinstance(holder, dict) and ("summary" in holder or "title" in holder):
            return str(holder.get("summary") or holder["title"])
    comments = (
        line.lstrip("# ").rstrip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    )
    return next((line for line in comments if not line.startswith("@package")), "")
