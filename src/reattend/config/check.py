"""Checks a command line before Hydra composes it, so that one message names all mistakes."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, cast, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    IntervalSweep,
    Override,
    OverrideType,
    QuotedString,
    RangeSweep,
    Transformer,
)
from hydra.errors import HydraException
from omegaconf import OmegaConf

from reattend.config.groups import group_defaults, members
from reattend.config.keys import key_problem
from reattend.config.loader import load, reason
from reattend.config.overrides import flag_problems, normalise_overrides, searched_folders, split_flags, written_out
from reattend.config.pairing import pairing_problems
from reattend.config.problems import ConfigError, refuse
from reattend.config.reach import reach_problems
from reattend.config.read import reading_problems
from reattend.config.schema import RunConfig
from reattend.errors import nearest

_QUOTED = "~!#&;<>^`"  # besides what is not ASCII, characters that Hydra's grammar takes only between quotes


def check_overrides(arguments: Sequence[str]) -> None:
    """Checks the arguments of a command line, flags among them or not, without building anything.

    Found are: what Hydra's grammar refuses, groups and members that do not exist (in every choice of a sweep), keys
    that do not exist at any depth, flags that point nowhere, and all that `read` finds in the composed rest and at
    every value of a list. Ranges and `hydra.*` are left to Hydra.

    Raises:
        ConfigError: with every mistake and the nearest valid name of each.
    """
    flags, given = split_flags(arguments)
    given = written_out(given)
    more = [folder for folder in searched_folders(flags) if folder.is_dir()]
    told: dict[int, list[str]] = {}  # problems by position on the command line
    overrides: dict[int, Override] = {}
    for position, text in enumerate(normalise_overrides(given)):
        told[position] = _syntax_problems(text)
        if not told[position]:
            overrides[position] = OverridesParser.create().parse_overrides([text])[0]
    known_folders = [*more, *_search_path(overrides.values())]
    groups = {position: o for position, o in overrides.items() if _is_group(o)}
    told |= {position: _group_problems(o, known_folders) for position, o in groups.items()}
    wrong_groups = {o.key_or_group for position, o in groups.items() if told[position]}
    others = {position: o for position, o in overrides.items() if position not in groups}
    keyed = {
        position: o
        for position, o in others.items()
        if not o.is_hydra_override() and o.key_or_group.split(".")[0] not in wrong_groups
    }
    sound = [o for position, o in groups.items() if not told[position]]
    sound += [o for o in others.values() if o.is_hydra_override()]
    if not {"-m", "--multirun"} & set(flags):
        for position, o in overrides.items():
            if o.is_sweep_override():
                typed = given[position].removeprefix("++")
                told[position].append(
                    f"{typed}: several values are a sweep, which needs -m; a list is written {o.key_or_group}=[...]"
                )
    further: list[str] = []
    try:
        trees = [
            OmegaConf.to_container(load(texts, more=more)) for texts in _choices(sound, known_folders, bool(keyed))
        ]
        for i, o in keyed.items():
            wrong_keys = [problem for tree in trees if (problem := key_problem(o, tree))]
            told[i] += wrong_keys[:1]
            if not wrong_keys:
                sound.append(o)
        composed = load(next(_choices(sound, known_folders, False)), more=more)
        further = reading_problems(composed, build=not wrong_groups and bool(sound) and any(told.values()))
        # A wrong group has left another member in its place, which is not what was asked for.
        further = [problem for problem in further if problem.split(".")[0] not in wrong_groups]
        if not further and not any(told.values()):
            further = _list_problems(keyed.values(), sound, known_folders, more)
    except ConfigError as error:
        further = [str(error)]
    refuse([*flag_problems(flags), *itertools.chain.from_iterable(told.values()), *further])


def check_reach(arguments: Sequence[str]) -> None:
    """Checks that something reads what a command line sets of beta, scales, window and scale.

    `check_overrides` has passed it. In a sweep one choice that reads it is enough. Settings in a `best=FILE` are not
    asked for.

    Raises:
        ConfigError: with every override that has no effect, and what has it.
    """
    flags, given = split_flags(arguments)
    overrides = OverridesParser.create().parse_overrides(
        [_at_one_value(text) for text in normalise_overrides(written_out(given))]
    )
    more = [*searched_folders(flags), *_search_path(overrides)]
    if any(override.key_or_group == "search" for override in overrides):
        first = load(next(_choices(overrides, more, False)), more=more, with_hydra=True)
        searched = first.hydra.sweeper.get("params") or {}
        given = [*given, *(f"{key}={value}" for key, value in searched.items())]
    unread = reach_problems(given, (load(texts, more=more) for texts in _choices(overrides, more, True)))
    if unread:
        # A backbone that does not fit reads other settings: then it is what is wrong.
        tree = OmegaConf.to_container(load(next(_choices(overrides, more, False)), more=more))
        refuse(pairing_problems(cast("dict[str, Any]", tree)) or unread)


def _at_one_value(text: str) -> str:
    """An override, of a range the one of its beginning."""
    (override,) = OverridesParser.create().parse_overrides([text])
    value = override.value()
    return f"{override.get_key_element()}={value.start}" if isinstance(value, IntervalSweep | RangeSweep) else text


def _list_problems(
    keyed: Iterable[Override], sound: Sequence[Override], known_folders: Sequence[Path], more: Sequence[Path]
) -> list[str]:
    """What `read` finds at the further entries of lists of values, each beside the first choice of all others."""
    problems = []
    for listed in keyed:
        if isinstance(listed.value(), ChoiceSweep):
            others = next(_choices([o for o in sound if o is not listed], known_folders, False))
            for text in _texts(listed, known_folders)[1:]:
                problems += reading_problems(load([*others, text], more=more), build=False)
    return problems


def _search_path(overrides: Iterable[Override]) -> list[Path]:
    """Folders that an override of `hydra.searchpath` adds."""
    values = [o.value() for o in overrides if o.key_or_group == "hydra.searchpath"]
    entries = [str(entry) for value in values if isinstance(value, list) for entry in value]
    return [
        Path(entry.removeprefix("file://")) for entry in entries if "://" not in entry or entry.startswith("file://")
    ]


def _syntax_problems(text: str) -> list[str]:
    name, equals, value = text.partition("=")
    if not equals and not text.startswith("~"):
        return [f"{text}: a '=' is missing; an override is {text if text.isidentifier() else 'key'}=value"]
    if not name.strip("+~"):
        return [f"{text}: the key before '=' is missing"]
    name, typed = name.removeprefix("++"), text.removeprefix("++")
    if equals and not value and not name.startswith("~"):
        return [f"{name} is empty; write {name}=VALUE, or leave it out"]
    try:
        OverridesParser.create().parse_overrides([text])
    except HydraException as error:
        odd = next((c for c in value if not c.isascii() or c in _QUOTED), None)
        if odd and value[0] not in "[{'\"":
            quoted = f'{name}="{os.path.expanduser(value)}"'
            return [f"{typed}: a value with {odd} is quoted twice, for the shell and for Hydra: {shlex.quote(quoted)}"]
        return [f"{typed}: not in Hydra's override grammar (quoted for the shell?): {reason(error)}"]
    return []


def _is_group(override: Override) -> bool:
    return override.key_or_group in group_defaults() and override.package is None


def _group_problems(override: Override, more: Sequence[Path]) -> list[str]:
    if override.type is not OverrideType.CHANGE:
        return []
    value = override.value()
    choices = [
        c.text if isinstance(c, QuotedString) else c
        for c in (value.list if isinstance(value, ChoiceSweep) else [value])
    ]
    return [p for choice in choices if (p := _member_problem(override.key_or_group, choice, more))]


def _member_problem(group: str, choice: Any, more: Sequence[Path]) -> str | None:
    known = members(group, more)
    if choice in known or isinstance(choice, Glob) or (choice is None and group_defaults()[group] is None):
        return None
    if _takes_value(group) and not isinstance(choice, str):
        typed = Transformer.str(choice)
        return f"{group}={typed}: {group} is a group of {', '.join(known)}; a value is set by {group}.value={typed}"
    told = f"{group}={Transformer.str(choice)}: {group} has no member '{Transformer.str(choice)}'"
    others = [other for other in group_defaults() if other != group and choice in members(other, more)]
    if others:
        best = max(others, key=lambda other: SequenceMatcher(None, group, other).ratio())
        return f"{told}; did you mean {best}={choice}? Members of {group}: {', '.join(known)}."
    return f"{told}.{nearest(str(choice), known)} Members of {group}: {', '.join(known)}."


def _takes_value(group: str) -> bool:
    kind = get_type_hints(RunConfig).get(group)
    return is_dataclass(kind) and any(f.name == "value" for f in fields(kind))


def _choices(overrides: Sequence[Override], more: Sequence[Path], every: bool) -> Iterator[list[str]]:
    """`overrides` with the first choice of each sweep; with `every`, also with each other choice once.

    Ranges and intervals are left out: their keys exist in the YAML files.
    """
    texts = [text for override in overrides if (text := _texts(override, more))]
    first = [text[0] for text in texts]
    yield first
    if every:
        for position, choices in enumerate(texts):
            for other in choices[1:]:
                yield [*first[:position], other, *first[position + 1 :]]


def _texts(override: Override, more: Sequence[Path]) -> list[str]:
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return [f"{override.get_key_element()}={Transformer.str(choice)}" for choice in value.list]
    if isinstance(value, Glob):
        return [f"{override.get_key_element()}={name}" for name in value.filter(members(override.key_or_group, more))]
    return [] if override.is_sweep_override() else [override.input_line or ""]
