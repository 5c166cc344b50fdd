"""From a command line to the searches that it asks for, one for each attention, task, ... in its lists."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep, Transformer
from omegaconf import DictConfig, OmegaConf

from reattend.config import check_run, config_dir, locate, read, to_dict
from reattend.config.groups import members
from reattend.config.loader import load
from reattend.config.overrides import searched_folders
from reattend.config.revisions import revisions
from reattend.config.schema import RunConfig
from reattend.data.checksum import data_checksum
from reattend.errors import ReattendError
from reattend.runs.identity import fingerprint


@dataclass(frozen=True)
class Search:
    """One study.

    Attributes:
        name: of the search.
        config: of the trials, before anything is searched.
        fixed: overrides of all trials, Hydra's own among them.
        space: key -> range in Hydra's grammar.
        folder: of the study, <outputs>/search/<task>/<attention>/<search>-<what it depends on, hashed>.
        trials: how many in all.
        metric: the validation metric.
        direction: whether it is to be high or low.
    """

    name: str
    config: RunConfig
    fixed: tuple[str, ...]
    space: Mapping[str, str]
    folder: Path
    trials: int
    metric: str
    direction: Literal["maximize", "minimize"]


def check_extra(flags: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuses a search by Optuna where it is not installed, of which Hydra would only say that a file is missing.

    Raises:
        ReattendError: the extra is missing.
    """
    if find_spec("hydra_plugins") and find_spec("hydra_plugins.hydra_optuna_sweeper"):
        return
    for override in overrides:
        key, _, value = override.partition("=")
        files = [folder / "search" / f"{value}.yaml" for folder in (config_dir(), *searched_folders(flags))]
        texts = [file.read_text(encoding="utf-8") for file in files if key == "search" and file.is_file()]
        if override == "hydra/sweeper=optuna" or any("hydra/sweeper: optuna" in text for text in texts):
            raise ReattendError(f"{override} needs Optuna, which is an extra: pip install 'reattend[search]'")


def plan_searches(flags: Sequence[str], overrides: Sequence[str]) -> list[Search]:
    """The searches by Optuna that a command line asks for; none if it asks for something else.

    A list such as attention=softmax,bn is one search for each of its entries, with equally many trials. Ranges,
    interval(), range() and choice(), are searched, beside those in the YAML file of the search.

    Args:
        flags: of the command line.
        overrides: checked and normalised.

    Raises:
        ReattendError: test would be selected on, nothing would be searched, data is missing, -m is missing.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    chosen = next((o for o in parsed if o.key_or_group == "search"), None)
    if chosen is None and "hydra/sweeper" not in {o.key_or_group for o in parsed}:
        return []
    if chosen is not None and chosen.is_sweep_override():
        raise ReattendError(f"{chosen.input_line}: one search at a time.")
    more = searched_folders(flags)
    lists = [_entries(o, more) for o in parsed if not _is_range(o)]
    ranges = [o for o in parsed if _is_range(o)]
    cases = [tuple(case) for case in itertools.product(*lists)]
    sweeper = load(cases[0], more=more, with_hydra=True).hydra.sweeper
    if not {"-m", "--multirun"} & set(flags):
        if chosen is not None and sweeper.get("params"):
            raise ReattendError(f"{chosen.input_line} is several runs, which needs -m: python train.py -m ...")
        return []
    if "optuna" not in sweeper._target_:
        return []
    if any(o.key_or_group == "seed" and o.is_sweep_override() for o in parsed):
        raise ReattendError("A search is done at one seed; the best configuration is then trained at several.")
    name = str(chosen.value()) if chosen is not None else "optuna"
    return [_search(name, case, ranges, more) for case in cases]


def _is_range(override: Override) -> bool:
    value = override.value()
    return isinstance(value, IntervalSweep | RangeSweep) or (isinstance(value, ChoiceSweep) and not value.simple_form)


def _entries(override: Override, more: Sequence[Path]) -> list[str]:
    """The override once for each entry of its list."""
    key, value = override.get_key_element(), override.value()
    if isinstance(value, Glob):
        return [f"{key}={name}" for name in value.filter(members(override.key_or_group, more))]
    if override.is_sweep_override():
        return [f"{key}={entry}" for entry in override.sweep_iterator(transformer=Transformer.encode)]
    return [override.input_line or ""]


def _search(name: str, fixed: tuple[str, ...], ranges: Sequence[Override], more: Sequence[Path]) -> Search:
    composed = load(fixed, more=more, with_hydra=True)
    sweeper = composed.hydra.sweeper
    OmegaConf.set_struct(composed, False)
    composed.pop("hydra")
    config = read(composed)
    space = _space(sweeper, fixed, ranges)
    if not space:
        raise ReattendError(f"search={name} has nothing left to search: leave out the override of what it searches.")
    if config.protocol.selection != "validation":
        raise ReattendError(
            f"search={name} selects on validation, and protocol={config.protocol.name} has none: it selects on test. "
            "Add protocol=strict."
        )
    check_run(config)
    inert = [key for key, text in space.items() if not _has_effect(key, text, fixed, more)]
    if inert:
        raise ReattendError(
            f"search={name}: attention={config.attention.name} on {config.task.name} does not use {', '.join(inert)}: "
            "its trials would all be the same. Search something else (python scripts/list.py search)."
        )
    metric = config.task.metric
    higher = locate(config.task.target).higher_is_better[metric]
    return Search(
        name,
        config,
        fixed,
        space,
        Path(config.outputs, "search", config.task.name, config.attention.name, f"{name}-{_identity(config, space)}"),
        int(sweeper.n_trials),
        f"val/{metric}",
        "maximize" if higher else "minimize",
    )


def _space(sweeper: DictConfig, fixed: Sequence[str], ranges: Sequence[Override]) -> dict[str, str]:
    """What the YAML file and the command line give to search, without what the command line fixes."""
    params = OmegaConf.to_container(sweeper.params, resolve=True) if sweeper.get("params") else {}
    assert isinstance(params, dict)
    space = {str(key): str(value) for key, value in params.items()}
    for override in ranges:
        key, _, text = (override.input_line or "").partition("=")
        space.pop(key.lstrip("+"), None)
        space[key] = text
    given = {override.partition("=")[0].lstrip("+") for override in fixed}
    return {key: text for key, text in space.items() if key.lstrip("+") not in given}


def _has_effect(key: str, text: str, fixed: Sequence[str], more: Sequence[Path]) -> bool:
    """Whether the two ends of a range are different runs."""
    value = OverridesParser.create().parse_overrides([f"{key}={text}"])[0].value()
    if isinstance(value, ChoiceSweep):
        ends = [Transformer.encode(value.list[0]), Transformer.encode(value.list[-1])]
    elif isinstance(value, IntervalSweep):
        ends = [value.start, value.end]
    elif isinstance(value, RangeSweep):
        ends = [value.start, value.stop]
    else:
        raise ReattendError(f"{key}={text} is no range: write interval(a,b), range(a,b) or choice(a,b).")
    low, high = (_run_identity(read(load([*fixed, f"{key}={end}"], more=more))) for end in ends)
    return low != high


def _identity(config: RunConfig, space: Mapping[str, str]) -> str:
    text = json.dumps([_run_identity(config), sorted(space.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _run_identity(config: RunConfig) -> str:
    return fingerprint(to_dict(config), data_checksum(config), revisions(config))
