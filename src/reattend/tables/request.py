"""What a command line asks of a table."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from omegaconf import DictConfig

from reattend.config import check_overrides, compose, normalise_overrides
from reattend.config.groups import group_defaults, members
from reattend.config.overrides import split_flags
from reattend.config.problems import ConfigError, refuse
from reattend.config.reach import reach_problems
from reattend.config.schema import RunConfig
from reattend.errors import ReattendError, nearest
from reattend.tables.cells import Cell, cell_overrides, compose_cells
from reattend.tables.ladder import ladder_rows
from reattend.tables.table import Setting, Table, load_table, table_names
from reattend.tables.table_check import exists, not_of_a_table

# Keys of a command's own, besides those of `read_request`.
KEYS = {
    "scripts/reproduce.py": ("plan", "workers", "retries", "report"),
    "scripts/report.py": ("to", "published"),
}

_OF_A_NAME = ("attention", "beta", "scales", "window", "backbone", "task")

CHOICE = """\
  table=primal_dual/table1      a published table (python scripts/list.py table), or my_table.yaml
  rows= columns=                some of its rows and columns; a row may be any attention, or my_module.MyAttention
  row.NAME="attention=... ..."  a row of one's own, by overrides
  seeds=N                       seeds 0 to N - 1
  ladder=true                   each quirk of the followed code turned to what is right, one at a time
  scale=quick data=standin ...  any override of a run, for all cells"""


@dataclass(frozen=True)
class Request:
    """A table, and what of it is wanted.

    Attributes:
        name: of the table.
        table: with the rows that the command line adds.
        rows, columns: the wanted ones.
        seeds: the wanted ones, 0 to n - 1.
        extra: overrides for all cells.
        options: further keys of the command's own.
    """

    name: str
    table: Table
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    extra: tuple[str, ...]
    options: Mapping[str, str]

    def cells(self) -> list[Cell]:
        """The wanted cells, composed once: what is edited later changes nothing for this request."""
        return self._cells

    @cached_property
    def _cells(self) -> list[Cell]:
        return compose_cells(self.table, self.rows, self.columns, self.extra)


def read_request(arguments: Sequence[str], options: Collection[str] = ()) -> Request:
    """Reads `table=`, `rows=`, `columns=`, `seeds=`, `row.<name>=` and `ladder=`; the rest are overrides for Hydra.

    A row may be any attention's name or the path of a class of one's own (`my_attention.MeanPooling`), and
    `row.<name>="attention=... attention.options.k=v"` adds one with overrides. `ladder=true` turns each wanted row into
    a fidelity ladder on the first wanted column that can be composed.

    Args:
        arguments: of the command line.
        options: further keys of the command.

    Raises:
        ReattendError: no or an unknown table, row or column; overrides that do not exist, that no wanted cell reads, or
            that replace what a row or column is.
    """
    request = _read(arguments, options)
    told = [*_renaming(request), *reach_problems(request.extra, _composed(request, request.rows))]
    for row in request.rows:
        unread = reach_problems(request.table.rows[row].overrides, _composed(request, [row]))
        told += [f"row {row}: {problem}" for problem in unread]
    refuse(told)
    return request


def _read(arguments: Sequence[str], options: Collection[str]) -> Request:
    own = {"table", "rows", "columns", "seeds", "ladder", *options}
    pairs = [argument.partition("=") for argument in arguments]
    chosen = {key: value for key, equals, value in pairs if equals and key in own}
    rows_given = [(key, value) for key, equals, value in pairs if key.startswith("row.") and equals]
    added = {key.removeprefix("row."): _words(key, value) for key, value in rows_given}
    rest = [
        argument
        for argument, (key, equals, _) in zip(arguments, pairs, strict=True)
        if not (equals and (key in own or key.startswith("row.")))
    ]
    flags, _ = split_flags(rest)
    if flags:
        raise ReattendError(f"{flags[0]}: this command takes key=value only; --help lists the keys.")
    _check_keys(rest, own)
    check_overrides(rest)
    if "table" not in chosen:
        raise ReattendError(f"Which table? table=<name> with one of: {', '.join(table_names())}.")
    table = load_table(chosen["table"])
    for row, overrides in added.items():
        if row in table.rows:
            raise ReattendError(f"row.{row}: the table has a row of that name, with numbers of its own; take another.")
        check_overrides(overrides)
        refuse([f"row.{row}: {told}" for told in not_of_a_table(overrides)])
    rows = _by_label(_names(chosen.get("rows"), [*table.rows, *added]), table.rows)
    settings = {row: _setting(table, row, added) for row in dict.fromkeys([*table.rows, *rows, *added])}
    columns = _by_label(_names(chosen.get("columns"), list(table.columns)), table.columns)
    for column in columns:
        if column not in table.columns:
            hint = nearest(column, table.columns)
            raise ReattendError(f"The table has no column '{column}'.{hint} It has: {', '.join(table.columns)}.")
    extra = normalise_overrides(rest)
    if not rows or not columns:
        raise ReattendError(f"No {'columns' if rows else 'rows'} are chosen: {' '.join(arguments)}")
    ladder = chosen.get("ladder", "false")
    if ladder not in ("true", "false"):
        raise ReattendError(f"ladder={ladder}: true or false.")
    if ladder == "true":
        settings = _ladder(table, {row: settings[row] for row in rows}, columns, extra)
        rows = list(settings)
    return Request(
        name=chosen["table"],
        table=dataclasses.replace(table, rows=settings),
        rows=tuple(rows),
        columns=tuple(columns),
        seeds=tuple(range(_seeds(chosen.get("seeds"), table.seeds))),
        extra=tuple(extra),
        options={key: chosen[key] for key in ("ladder", *options) if key in chosen},
    )


def read_requests(arguments: Sequence[str], options: Collection[str] = ()) -> list[Request]:
    """As `read_request`, but `table=all` asks for every table as a whole.

    Raises:
        ReattendError: as there, or rows and columns are chosen for all tables.
    """
    if "table=all" not in arguments:
        return [read_request(arguments, options)]
    parts = [a for a in arguments if a.startswith(("rows=", "columns=", "row.", "ladder="))]
    if parts:
        raise ReattendError(f"table=all takes all rows and columns; {parts[0]} needs one table, table=NAME.")
    first, *others = table_names()
    request = _read([f"table={first}" if a == "table=all" else a for a in arguments], options)
    counts = [argument.removeprefix("seeds=") for argument in arguments if argument.startswith("seeds=")]
    return [request, *(_whole(request, name, counts[-1] if counts else None) for name in others)]


def _renaming(request: Request) -> Iterator[str]:
    """Overrides for all cells that take the place of what rows or columns, as their names say, have of models and data.

    How they are trained may be set for all, and the page tells it.
    """
    places = {f"row {name}": request.table.rows[name] for name in request.rows}
    places |= {f"column {name}": request.table.columns[name] for name in request.columns}
    for override in request.extra:
        key, text = _key(override), override.lstrip("+")
        if re.split(r"[./]", key)[0] not in _OF_A_NAME:
            continue
        replaced = [
            place
            for place, setting in places.items()
            if any(_key(own) == key and own.lstrip("+") != text for own in setting.overrides)
        ]
        if replaced:
            yield (
                f"{text}: {', '.join(replaced)} would go by another {key} than they have. For a row of its own:"
                f" row.NAME='attention=... {text}'"
            )


def _composed(request: Request, rows: Sequence[str]) -> Iterator[DictConfig]:
    """What the wanted cells of these rows compose to, of those that can be composed."""
    for row, column in itertools.product(rows, request.columns):
        overrides = cell_overrides(request.table, row, column, request.extra)
        if all(map(exists, overrides)):
            with suppress(ConfigError):
                yield compose(overrides)


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _check_keys(overrides: Sequence[str], own: Collection[str]) -> None:
    """Refuses keys that are neither a configuration's nor the command's own, with the nearest of both."""
    known = {field.name for field in dataclasses.fields(RunConfig)} | set(group_defaults()) | {"best", "hydra"}
    for override in overrides:
        key = _key(override)
        command = next((command for command, keys in KEYS.items() if key in keys), None)
        if command is not None:
            raise ReattendError(f"{override}: '{key}' is a key of python {command}.")
        if key == "seed":
            raise ReattendError(f"{override}: a table is run with the seeds 0 to n - 1, which seeds=n sets.")
        if re.split(r"[./@]", key)[0] not in known and "=" in override:
            of_both = {*own, *known} - {"hydra", "seed"}
            raise ReattendError(
                f"{override}: there is no key '{key}'.{nearest(key, of_both)} This command's own: "
                f"{', '.join(sorted(own))}; the others are groups and keys of a run (python scripts/list.py)."
            )


def _whole(like: Request, name: str, seeds: str | None) -> Request:
    table = load_table(name)
    counted = tuple(range(_seeds(seeds, table.seeds)))
    return dataclasses.replace(
        like, name=name, table=table, rows=tuple(table.rows), columns=tuple(table.columns), seeds=counted
    )


def _ladder(
    table: Table, rows: Mapping[str, Setting], columns: Sequence[str], extra: Sequence[str]
) -> dict[str, Setting]:
    cells = compose_cells(dataclasses.replace(table, rows=rows), rows, columns, extra)
    whole = next((cell.column for cell in cells if cell.config is not None), None)
    if whole is None:
        raise ReattendError(f"No cell can be composed, so there is no ladder: {cells[0].problem}")
    others = [*table.overrides, *table.columns[whole].overrides, *extra]
    found = ladder_rows({row: setting for row, setting in rows.items() if _composes(cells, row, whole)}, others)
    if not found:
        raise ReattendError(f"No fidelity switch changes {', '.join(rows)} on {whole}: there is no ladder.")
    return found


def _composes(cells: Sequence[Cell], row: str, column: str) -> bool:
    return any((cell.row, cell.column) == (row, column) and cell.config is not None for cell in cells)


def _names(asked: str | None, known: list[str]) -> list[str]:
    if asked is None:
        return known
    return list(dict.fromkeys(name.strip() for name in asked.strip("[]").split(",") if name.strip()))


def _by_label(names: Sequence[str], settings: Mapping[str, Setting]) -> list[str]:
    """The names, with labels, which pages show, replaced by the names that they stand for."""
    labels = {setting.label: name for name, setting in settings.items() if setting.label}
    return list(dict.fromkeys(name if name in settings else labels.get(name, name) for name in names))


def _words(key: str, value: str) -> list[str]:
    """The overrides of a row; one with a space in it stands in quotes of its own, or in brackets or braces."""
    try:
        words = shlex.split(re.sub(r"[{\[][^{}\[\]]*[}\]]", lambda found: found[0].replace(" ", ""), value))
    except ValueError as error:
        raise ReattendError(f"{key}={value}: {error}") from error
    if key == "row." or not words:
        raise ReattendError(f"{key}={value}: a row has a name and overrides: row.mine='attention=bn beta.value=0.3'.")
    return words


def _setting(table: Table, row: str, added: Mapping[str, list[str]]) -> Setting:
    if row in added:
        return Setting(added[row])
    if row in table.rows:
        return table.rows[row]
    if row in members("attention"):
        return Setting([f"attention={row}"])
    if "." in row:
        return Setting(["attention=custom", f"attention.target={row}"])
    raise ReattendError(
        f"The table has no row '{row}', and there is no such attention."
        f"{nearest(row, [*table.rows, *members('attention')])} It has: {', '.join(table.rows)}. "
        f"One of your own: row.{row}='attention=custom attention.target=my_file.MyMixer'."
    )


def _seeds(asked: str | None, default: int) -> int:
    if asked is None:
        return default
    if not asked.isdecimal() or int(asked) < 1:
        raise ReattendError(f"seeds={asked}: how many, at least 1; they are 0, 1, 2, ...")
    return int(asked)
